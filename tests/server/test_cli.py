"""The command line: a mistake is one clear line on standard error and exit status 2, never a traceback."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from server.cli import app
from tests.running_server import COMMAND


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command configures logging for its process, which here is pytest's."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def invoke(*arguments: str) -> Result:
    """The command in this process; columns enough that no line is broken."""
    return CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "server.prt=1"], "unknown setting 'server.prt'; did you mean 'server.port'?"),
        (["--set", "engine.faults.fail=1"], "did you mean 'engine.faults.fail_after_tokens'?"),
        (["--set", "server.port=x"], "server.port: "),
        (["--set", "server.keepalive_seconds=0"], "server.keepalive_seconds: "),
        (["--set", "server.api_keys=sha256:zz"], "server.api_keys: after 'sha256:'"),
        (["--engine", "warp"], "engine.kind: "),
        (["--model", "/no/such/folder"], "no such folder"),
        (["--config", "/no/such.yaml"], "/no/such.yaml can't be read"),
        (["--port", "70000"], "server.port: "),
    ],
)
def test_a_bad_setting(arguments: list[str], words: str) -> None:
    """The line names the setting, and nothing was started."""
    result = invoke("serve", "--engine", "simulated", *arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("tailrace: ")
    assert words in line
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--port", "abc"], "--port"),
        (["serve", "--set", "no-equals-sign"], "is not KEY=VALUE"),
        (["serve", "--prot", "1"], "No such option"),
        (["sevre"], "No such command"),
    ],
)
def test_a_bad_flag(arguments: list[str], words: str) -> None:
    """The command's own syntax is explained by its library, with the same status."""
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_help_names_every_flag() -> None:
    """`--help` is enough to start a server."""
    result = invoke("serve", "--help")
    assert result.exit_code == 0
    for flag in ("--config", "--model", "--engine", "--host", "--port", "--set"):
        assert flag in result.stdout


def test_a_port_that_is_taken(demo_model: Path, echo_server: object) -> None:
    """Another server's port: a line that says so, no ready line, and a status that is not 0."""
    port = str(echo_server.url).rsplit(":", 1)[1]  # type: ignore[attr-defined]
    command = [str(COMMAND), "serve", "--engine", "simulated", "--model", str(demo_model), "--port", port]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode != 0
    assert "address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
