"""What the backend reads from a model's folder, and what it refuses before any weight is loaded."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.backends.model_folder import read_limits
from engine.backends.request_checks import check_request
from engine.backends.transformers import TransformersBackend
from engine.config import EngineConfig
from engine.errors import ConfigError, ContextLengthError, InvalidRequestError, ModelLoadError
from engine.types import EngineRequest, ModelLimits, SamplingParams

LIMITS = ModelLimits(context_length=100, vocab_size=50, eos_token_ids=frozenset({2}))
CONFIG = {"vocab_size": 50, "max_position_embeddings": 100, "eos_token_id": 2}


def write(folder: Path, **files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def request(prompt: list[int], max_tokens: int = 10, **sampling: Any) -> EngineRequest:
    return EngineRequest("one", prompt, SamplingParams(max_tokens=max_tokens, **sampling))


def test_limits_come_from_the_folder(tmp_path: Path) -> None:
    """Context, vocabulary, and every id that any of the files calls an end of sequence."""
    write(
        tmp_path,
        config=CONFIG,
        generation_config={"eos_token_id": [3, 4]},
        tokenizer_config={"eos_token": {"content": "<end>"}},
        tokenizer={"added_tokens": [{"id": 7, "content": "<end>"}, {"id": 8, "content": "<other>"}]},
    )
    assert read_limits(EngineConfig(), tmp_path) == ModelLimits(100, 50, frozenset({2, 3, 4, 7}))


@pytest.mark.parametrize(("wanted", "context"), [(None, 100), (30, 30), (1000, 100)])
def test_the_context_is_the_smaller_of_model_and_setting(tmp_path: Path, wanted: int | None, context: int) -> None:
    """A setting can shorten the model's context and never lengthens it; a nested text config counts."""
    write(tmp_path, config={"text_config": CONFIG})
    assert read_limits(EngineConfig(max_model_len=wanted), tmp_path).context_length == context


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "config.json"),
        ("{", "config.json"),
        ("[]", "config.json"),
        ('{"max_position_embeddings": 100}', "vocab_size"),
        ('{"vocab_size": 100}', "max_model_len"),
    ],
)
def test_a_folder_without_what_is_needed_is_refused(tmp_path: Path, content: str | None, named: str) -> None:
    """The message names the file or the setting to mend."""
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=named):
        read_limits(EngineConfig(), tmp_path)


@pytest.mark.parametrize("version", ["5.18.2", "5.20.0", "6.0.0", "5.190.0"])
def test_another_transformers_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """The backend rests on private parts of the library, so it says which release it knows."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(ModelLoadError, match=r"5\.19") as refusal:
        TransformersBackend(EngineConfig(), write(tmp_path, config=CONFIG))
    assert version in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_without_the_library_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra is the operator's to mend, in one command."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ModelLoadError, match="pip install"):
        TransformersBackend(EngineConfig(), write(tmp_path, config=CONFIG))


def test_blocks_too_small_are_refused(tmp_path: Path) -> None:
    """The message names the setting."""
    with pytest.raises(ConfigError, match=r"engine\.block_size"):
        TransformersBackend(EngineConfig(block_size=2), write(tmp_path, config=CONFIG))


def test_the_package_is_imported_without_torch() -> None:
    """Choosing the backend costs nothing before it starts."""
    code = "import sys, engine.backends.transformers; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("one", "param"),
    [
        (request([1, 50]), "prompt"),
        (request([-1]), "prompt"),
        (request([1], logit_bias={50: 1.0}), "logit_bias"),
        (request([1], logit_bias={-1: 1.0}), "logit_bias"),
    ],
)
def test_what_cannot_be_generated_is_refused_by_name(one: EngineRequest, param: str) -> None:
    """Ids that the model does not have. What an engine can't do at all: `tests/server/test_parameter_table.py`."""
    with pytest.raises(InvalidRequestError) as refusal:
        check_request(one, LIMITS, None)
    assert refusal.value.param == param


@pytest.mark.parametrize(("cache_tokens", "room"), [(None, 100), (64, 64), (1000, 100)])
def test_prompt_and_output_must_fit_context_and_cache(cache_tokens: int | None, room: int) -> None:
    """A sequence that could never finish is refused at the door: it would stall the engine when it is full."""
    check_request(request([1] * (room - 10), 10), LIMITS, cache_tokens)
    for prompt, max_tokens, param in ((room - 10, 11, "max_tokens"), (room, 1, "prompt")):
        with pytest.raises(ContextLengthError) as refusal:
            check_request(request([1] * prompt, max_tokens), LIMITS, cache_tokens)
        assert refusal.value.param == param
