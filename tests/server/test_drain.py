"""SIGTERM: no new work, what runs may finish in its time, the rest is told, and the process exits with status 0."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.running_server import RunningServer, poll_until
from tests.server.open_request import OpenRequest
from tests.server.replies import COMPLETIONS, DONE, parsed

LONG = {"prompt": [905], "ignore_eos": True, "max_tokens": 8_000, "stream": True}


@contextmanager
def slow_server(model: Path, folder: Path, drain_seconds: float) -> Iterator[RunningServer]:
    """A step every 10 ms."""
    flags = ("--engine", "simulated", "--model", str(model), "--set", "engine.step_interval_ms=10")
    with RunningServer(*flags, "--set", f"server.drain_timeout_seconds={drain_seconds}", log_folder=folder) as server:
        yield server


def exit_status(server: RunningServer, seconds: float) -> int:
    return server.process.wait(seconds)


def test_a_stream_may_finish(demo_model: Path, tmp_path: Path) -> None:
    """A stream that ends in time ends well, and the process does not wait any longer."""
    with slow_server(demo_model, tmp_path, 30) as server:
        with OpenRequest(server.url, COMPLETIONS, LONG | {"max_tokens": 50}) as request:
            assert request.next_events(1)
            server.process.send_signal(signal.SIGTERM)
            *events, last = request.all_events()
        assert last == DONE
        assert parsed(events[-1])["choices"][0]["finish_reason"] == "length"
        assert exit_status(server, 10) == 0


def test_the_rest_is_told(demo_model: Path, tmp_path: Path) -> None:
    """While draining: not ready, new requests get a 503.

    After the bound streams end with an error event and a whole answer with a 503; exit status 0 a little later.
    """
    with slow_server(demo_model, tmp_path, 1) as server, ExitStack() as stack:
        streams = [stack.enter_context(OpenRequest(server.url, COMPLETIONS, LONG)) for _ in range(3)]
        whole = stack.enter_context(OpenRequest(server.url, COMPLETIONS, LONG | {"stream": False}))
        for stream in streams:
            assert stream.next_events(1)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        poll_until(lambda: httpx.get(f"{server.url}/ready").status_code == 503, 1, lambda: "still ready")
        refused = server.post(COMPLETIONS, {"prompt": [905]})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        for stream in streams:
            assert_told(stream.all_events()[-1])
        assert whole.response.status == 503
        assert exit_status(server, 10) == 0
        assert 1 <= time.monotonic() - began < 5
        ends = [record["end_state"] for record in server.log_records(event="request")]
    assert sorted(ends) == ["rejected"] + ["upstream_error"] * 4


def assert_told(event: bytes) -> None:
    assert "shutting down" in parsed(event)["error"]["message"]


def test_a_second_signal_hurries(demo_model: Path, tmp_path: Path) -> None:
    """The operator who can't wait asks twice: streams are told at once, exit status 0."""
    with slow_server(demo_model, tmp_path, 60) as server, OpenRequest(server.url, COMPLETIONS, LONG) as request:
        assert request.next_events(1)
        server.process.send_signal(signal.SIGTERM)
        poll_until(lambda: httpx.get(f"{server.url}/ready").status_code == 503, 1, lambda: "still ready")
        server.process.send_signal(signal.SIGINT)
        assert_told(request.all_events()[-1])
        assert exit_status(server, 10) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once(demo_model: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Nothing to wait for, not even a client that keeps its connection."""
    with slow_server(demo_model, tmp_path, 60) as server, httpx.Client(base_url=server.url) as client:
        assert client.get("/health").status_code == 200
        server.process.send_signal(number)
        assert exit_status(server, 4) == 0
