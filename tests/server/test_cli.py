"""The command line: a mistake is one clear line on standard error and exit status 2, never a traceback."""

from __future__ import annotations

import hashlib
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
        (["--set", "server.api_keys=sha256:zz"], "server.api_keys.0.key: after 'sha256:'"),
        (["--host", "0.0.0.0"], "without API keys everyone who reaches 0.0.0.0 could use the model"),  # noqa: S104
        (["--set", "server.tls_key=/a.pem"], "TLS needs both"),
        (
            ["--set", "server.tls_key=/no/a.pem", "--set", "server.tls_certificate=/no/b.pem"],
            "server.tls_certificate (/no/b.pem) and server.tls_key (/no/a.pem) can't be read: No such file",
        ),
        (["--set", "server.cors_origins=https://a/b"], "'https://a/b' is no origin"),
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


def test_an_audit_log_that_cannot_be_written(demo_model: Path) -> None:
    """It is found at the start, not with the first request."""
    result = invoke(
        "serve", "--engine", "simulated", "--model", str(demo_model), "--set", "server.audit_log=/no/such/folder/a"
    )
    assert result.exit_code == 2, result.output
    assert "server.audit_log: /no/such/folder/a can't be written: No such file or directory" in result.stderr
    assert result.stderr.count("tailrace: ") == 1


@pytest.mark.parametrize(("arguments", "typed"), [(["sk-1"], ""), ([], "sk-1\n"), ([], "sk-1"), (["sk-1"], "other\n")])
def test_a_key_is_hashed(arguments: list[str], typed: str) -> None:
    """As an argument or on standard input; what is printed is the one line that a config file may hold."""
    result = CliRunner().invoke(app, ["hash-key", *arguments], input=typed)
    assert result.exit_code == 0
    assert result.stdout == "sha256:" + hashlib.sha256(b"sk-1").hexdigest() + "\n"


def test_no_key_to_hash() -> None:
    """Nothing, or blanks, is a mistake: the hash of an empty key would be no lock."""
    for typed in ("", "\n", "  \n"):
        result = CliRunner().invoke(app, ["hash-key"], input=typed)
        assert result.exit_code == 2
        assert result.stdout == ""


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
