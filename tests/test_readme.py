"""The README is true: every command in its shell blocks is run here, as it stands but for ports and placeholders."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from server.auth import ApiKeys
from server.config import load_settings
from tests.running_server import READY, RunningServer

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text()
SERVE = ".venv/bin/tailrace serve "
QUICK_BENCHMARKS = {
    "benchmarks/decode.py": ["--contexts", "16", "--streams", "1,2", "--tokens", "4", "--rounds", "1"],
    "benchmarks/detokenizer.py": ["--vocabularies", "smollm2", "--rounds", "1"],
}


def commands() -> list[str]:
    """Every command of the README's shell blocks, comments cut off, continued lines joined."""
    found: list[str] = []
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL):
        pending = ""
        for line in block.splitlines():
            pending += ("\n" if pending else "") + line
            try:
                words = shlex.split(pending, comments=True)
            except ValueError:  # inside quotes: the command goes on
                continue
            if words:
                found.append(pending.split(" #")[0].strip())
            pending = ""
    return found


def commands_with(beginning: str) -> list[str]:
    return [command for command in commands() if command.startswith(beginning)]


def test_there_is_a_test_for_every_command() -> None:
    """A command that none of the tests below runs has no place in the README."""
    known = (
        "git clone <this repository> tailrace && cd tailrace",
        "make serve",
        "curl -N ",
        SERVE,
        ".venv/bin/tailrace hash-key ",
        ".venv/bin/python benchmarks/",
        ".venv/bin/python -m server.parameter_table ",
        ".venv/bin/python -m tests.engine.detokenizer.fuzz ",
        ".venv/bin/python -m tests.server.schema_calls ",
    )
    assert [command for command in commands() if not command.startswith(known)] == []


@pytest.mark.real_model
@pytest.mark.timeout(900)
def test_make_serve_answers_the_curl() -> None:
    """`make serve` gets ready by itself, and the README's curl streams the right answer from it."""
    (curl,) = commands_with("curl -N ")
    make = subprocess.Popen(
        ["make", "serve", "PORT=0"], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert make.stdout is not None
        ready = next(match for line in make.stdout if (match := READY.fullmatch(line.strip())))
        command = shlex.split(curl.replace("http://127.0.0.1:8000", ready.group(1)))
        answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    finally:
        make.send_signal(signal.SIGTERM)
        make.communicate(timeout=30)
    chunks = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    text = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    assert "Paris" in text
    assert len(chunks) > 5
    assert answer.endswith("data: [DONE]\n\n")


@pytest.mark.real_model
@pytest.mark.parametrize("command", commands_with(SERVE))
def test_serve_commands_get_ready(command: str, demo_model: Path, tmp_path: Path) -> None:
    """Each way of serving that the README shows gets ready and ends cleanly."""
    flags = shlex.split(command.removeprefix(SERVE).replace("FOLDER_OR_HUB_NAME", str(demo_model)))
    flags = [str(REPOSITORY / flag) if flag.startswith("configs/") else flag for flag in flags]
    with RunningServer(*flags, "--port", "0", log_folder=tmp_path) as server:
        assert server.stop() == 0


@pytest.mark.real_model
@pytest.mark.parametrize("command", sorted(set(re.findall(r"python (benchmarks/\S+\.py)", README))))
def test_benchmarks_run(command: str, tmp_path: Path) -> None:
    """Each benchmark whose figures the README gives runs, in its quickest form, and writes its JSON."""
    out = tmp_path / "figures.json"
    line = [sys.executable, command, *QUICK_BENCHMARKS[command], "--out", str(out)]
    subprocess.run(line, cwd=REPOSITORY, check=True, capture_output=True, timeout=110)
    assert json.loads(out.read_text())


def test_the_long_exactness_run_runs() -> None:
    """The README's command for millions of tokens, with thousands, finds no mismatch."""
    (command,) = commands_with(".venv/bin/python -m tests.engine.detokenizer.fuzz ")
    words = [sys.executable, *shlex.split(re.sub(r"--tokens \d+", "--tokens 20000", command))[1:]]
    subprocess.run(words, cwd=REPOSITORY, check=True, capture_output=True, timeout=110)


def test_the_parameter_table_is_written() -> None:
    """The README's command writes the file that is there."""
    (command,) = commands_with(".venv/bin/python -m server.parameter_table ")
    words, _, file = command.partition(" > ")
    line = [sys.executable, *shlex.split(words)[1:]]
    written = subprocess.run(line, cwd=REPOSITORY, check=True, capture_output=True, text=True, timeout=60).stdout
    assert written == (REPOSITORY / file).read_text()


def test_the_documents_calls_are_made() -> None:
    """The README's command for thousands of calls, with a hundred, finds no fault."""
    (command,) = commands_with(".venv/bin/python -m tests.server.schema_calls ")
    words = [sys.executable, *shlex.split(re.sub(r"--calls \d+", "--calls 100", command))[1:]]
    subprocess.run(words, cwd=REPOSITORY, check=True, capture_output=True, timeout=110)


def test_the_hash_of_a_key() -> None:
    """What the README's command prints lets that key in."""
    (command,) = commands_with(".venv/bin/tailrace hash-key ")
    words = [str(Path(sys.executable).with_name("tailrace")), *shlex.split(command)[1:]]
    printed = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    config = load_settings(None, [("server.api_keys", printed)]).server
    assert ApiKeys(config).check("/v1/models", {"x-api-key": words[-1]}) is not None


@pytest.mark.parametrize("file", sorted((REPOSITORY / "configs").glob("*.[yt][ao]ml")), ids=lambda file: file.name)
def test_shipped_configs_are_valid(file: Path) -> None:
    """Every config of the server's that is shipped is accepted; the `.yml` files are other programs'."""
    load_settings(file, [])


def test_the_main_config_shows_the_defaults() -> None:
    """What configs/tailrace.yaml calls the default is the default."""
    assert load_settings(REPOSITORY / "configs" / "tailrace.yaml", []) == load_settings(None, [])


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`(tests/[^`]+)`", README))))
def test_the_tests_that_the_guarantees_name_exist(target: str) -> None:
    """Each guarantee's test is there."""
    assert (REPOSITORY / target).exists()
