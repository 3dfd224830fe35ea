"""The log never stands in the event loop's way: a slow or absent reader costs lines, counted, and nothing else."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import IO, Any

import httpx
import pytest

from server import log
from server.log import JsonFormatter, QueuedLines
from tests.running_server import COMMAND, READY, STOP_SECONDS

PIPE_BYTES = 65_536
"""What Linux' pipes hold."""


class Stuck(io.StringIO):
    """An output whose reader takes nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = Event()
        self.reads = Event()

    def write(self, text: str) -> int:
        self.entered.set()
        assert self.reads.wait(10)
        return super().write(text)


def line(number: int) -> logging.LogRecord:
    return logging.LogRecord("test", logging.INFO, __file__, 1, "line %d", (number,), None)


@pytest.fixture
def stuck() -> Stuck:
    return Stuck()


@pytest.fixture
def lines(stuck: Stuck) -> Iterator[QueuedLines]:
    """Ten lines may wait, beside those that the output is being given."""
    handler = QueuedLines(stuck, capacity=10)
    handler.setFormatter(JsonFormatter())
    yield handler
    stuck.reads.set()
    handler.close()


def test_a_slow_reader_costs_lines_and_no_time(stuck: Stuck, lines: QueuedLines) -> None:
    """Lines beyond the queue are dropped at once and counted; those before come out whole, once and in order."""
    lines.handle(line(0))
    assert stuck.entered.wait(10)
    for number in range(1, 100):
        lines.handle(line(number))
    assert lines.dropped == 89
    stuck.reads.set()
    lines.close()
    assert [json.loads(text)["message"] for text in stuck.getvalue().splitlines()] == [f"line {n}" for n in range(11)]


def test_a_line_says_what_was_when_it_was_logged(stuck: Stuck, lines: QueuedLines) -> None:
    """What a record names may change before the line is written; the line does not."""
    fields: dict[str, Any] = {"tokens": 1}
    record = line(0)
    record.fields = fields
    lines.handle(record)
    fields["tokens"] = 2
    stuck.reads.set()
    lines.close()
    assert json.loads(stuck.getvalue())["tokens"] == 1


@pytest.mark.parametrize("queued", [1, 100], ids=["one line", "a full queue"])
def test_the_end_does_not_wait_for_a_reader(
    stuck: Stuck, lines: QueuedLines, queued: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing is bounded, whether or not the output takes the last lines."""
    monkeypatch.setattr(log, "LAST_LINES_SECONDS", 0.05)
    for number in range(queued):
        lines.handle(line(number))
    began = time.monotonic()
    lines.close()
    assert time.monotonic() - began < 5
    assert stuck.getvalue() == ""


def test_a_broken_output_is_survived() -> None:
    """A closed standard error ends no thread: lines go nowhere, and close returns."""
    output = io.StringIO()
    handler = QueuedLines(output)
    output.close()
    for number in range(3):
        handler.handle(line(number))
    handler.close()
    assert handler.dropped == 0


@pytest.fixture
def unread(demo_model: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server whose standard error is a full pipe that nobody reads, and its address."""
    with ExitStack() as stack:
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        with os.fdopen(writing, "wb", buffering=0) as stderr:
            os.set_blocking(writing, False)
            fill(stderr)
            os.set_blocking(writing, True)
            command = [str(COMMAND), "serve", "--port", "0", "--engine", "simulated", "--model", str(demo_model)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        stack.callback(process.wait)
        stack.callback(process.kill)
        assert process.stdout is not None
        stack.enter_context(process.stdout)
        match = READY.fullmatch(process.stdout.readline().strip())
        assert match is not None
        yield process, match.group(1)


def fill(pipe: IO[bytes]) -> None:
    """Until it takes nothing more: an unbuffered write to a full pipe returns None."""
    while pipe.write(b"x" * PIPE_BYTES) is not None:
        pass


def test_a_server_with_a_full_pipe_answers_and_ends(unread: tuple[subprocess.Popen[str], str]) -> None:
    """Whoever started it and does not read its log stops neither answers nor its end."""
    process, url = unread
    with httpx.Client(base_url=url, timeout=10) as client:
        for _ in range(20):
            assert client.post("/v1/completions", json={"prompt": [905], "max_tokens": 1}).status_code == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_SECONDS) == 0
