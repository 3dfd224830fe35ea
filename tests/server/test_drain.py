"""SIGTERM: no new work, what runs may finish in its time, the rest is told, and the process exits with status 0."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest

from server.serving import LAST_WORDS_SECONDS
from tests.running_server import RunningServer, poll_until, simulated
from tests.server.open_request import OpenRequest
from tests.server.replies import COMPLETIONS, DONE, parsed

LONG = {"prompt": [905], "ignore_eos": True, "max_tokens": 8_000, "stream": True}


@contextmanager
def slow_server(model: Path, folder: Path, drain_seconds: float, *settings: str) -> Iterator[RunningServer]:
    """A step every 10 ms, unless the settings say otherwise."""
    drain = f"server.drain_timeout_seconds={drain_seconds}"
    flags = simulated(model, "engine.step_interval_ms=10", drain, *settings)
    with RunningServer(*flags, log_folder=folder) as server:
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
        assert refused.headers["connection"] == "close"
        assert server.metrics()['tailrace_admission_rejections_total{reason="draining"}'] == 1
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


def stop_within(server: RunningServer, seconds: float) -> None:
    """One signal, status 0 in time, and nothing that had to be broken off: uvicorn cancelled no task."""
    server.process.send_signal(signal.SIGTERM)
    assert exit_status(server, seconds) == 0
    log = server.log_file.read_text()
    assert "Traceback" not in log
    assert "Cancel " not in log


def test_who_does_not_read_is_cut(demo_model: Path, tmp_path: Path) -> None:
    """A client that takes nothing gets its last words' time and no more; its account is closed like any other."""
    with (
        slow_server(demo_model, tmp_path, 0.5, "engine.step_interval_ms=0") as server,
        OpenRequest(server.url, COMPLETIONS, LONG | {"logprobs": 5}, receive_buffer=4_096),
    ):
        poll_until(lambda: server.metrics()["tailrace_tokens_generated_total"] >= 8_000, 20, lambda: "still generating")
        stop_within(server, 0.5 + LAST_WORDS_SECONDS + 3)
        (record,) = server.log_records(event="request")
    assert record["end_state"] in ("upstream_error", "client_cancelled")


def test_connections_without_a_request(demo_model: Path, tmp_path: Path) -> None:
    """Idle ones, half a head and half a body do not hold the process longer than the bound and its last words."""
    begun = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n"
    with slow_server(demo_model, tmp_path, 0.5) as server, ExitStack() as stack:
        address = httpx.URL(server.url)
        for sent in (b"", b"POST /v1/comp", begun, begun + b"content-length: 100\r\n\r\n{"):
            connection = stack.enter_context(closing(socket.create_connection((address.host, address.port or 0))))
            connection.sendall(sent)
        idle = stack.enter_context(httpx.Client(base_url=server.url))
        assert idle.get("/health").status_code == 200
        stop_within(server, 0.5 + LAST_WORDS_SECONDS + 3)


def test_a_queued_request_is_told(demo_model: Path, tmp_path: Path) -> None:
    """What still waits when the bound is over has had no headers: it gets a 503, the running one its event."""
    with (
        slow_server(demo_model, tmp_path, 0.5, "engine.max_num_seqs=1") as server,
        OpenRequest(server.url, COMPLETIONS, LONG) as running,
    ):
        assert running.next_events(1)
        with OpenRequest(server.url, COMPLETIONS, LONG) as queued:
            poll_until(lambda: server.metrics()["tailrace_sequences_waiting"] == 1, 2, lambda: "nothing waits")
            server.process.send_signal(signal.SIGTERM)
            assert queued.response.status == 503
            assert queued.response.headers["retry-after"]
            assert_told(running.all_events()[-1])
        assert exit_status(server, 5) == 0


def test_a_queued_request_may_finish(demo_model: Path, tmp_path: Path) -> None:
    """It was accepted: within the bound it is begun and answered to its end."""
    short = LONG | {"max_tokens": 30}
    with (
        slow_server(demo_model, tmp_path, 30, "engine.max_num_seqs=1") as server,
        OpenRequest(server.url, COMPLETIONS, short) as running,
    ):
        assert running.next_events(1)
        with OpenRequest(server.url, COMPLETIONS, short) as queued:
            poll_until(lambda: server.metrics()["tailrace_sequences_waiting"] == 1, 2, lambda: "nothing waits")
            server.process.send_signal(signal.SIGTERM)
            assert running.all_events()[-1] == DONE
            assert queued.all_events()[-1] == DONE
        assert exit_status(server, 5) == 0


def test_an_engine_that_is_down_holds_nobody(demo_model: Path, tmp_path: Path) -> None:
    """There is nothing to finish: the process ends at once, long before the engine's next start."""
    settings = ("engine.faults.crash_after_steps=3", "engine.restart_backoff_seconds=50")
    with slow_server(demo_model, tmp_path, 60, *settings) as server:
        assert server.post(COMPLETIONS, LONG | {"stream": False}).status_code in (500, 503)
        poll_until(lambda: httpx.get(f"{server.url}/ready").status_code == 503, 2, lambda: "still ready")
        refused = server.post(COMPLETIONS, {"prompt": [905]})
        assert (refused.status_code, 1 <= int(refused.headers["retry-after"]) <= 50) == (503, True)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert exit_status(server, 10) == 0
        assert time.monotonic() - began < 3


def test_an_engine_that_hangs_holds_nobody(demo_model: Path, tmp_path: Path) -> None:
    """Its streams are told when the bound is over, and the process does not wait for it."""
    with (
        slow_server(demo_model, tmp_path, 0.5, "engine.faults.stall_after_steps=3") as server,
        OpenRequest(server.url, COMPLETIONS, LONG) as request,
    ):
        assert request.next_events(1)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert_told(request.all_events()[-1])
        assert exit_status(server, 10) == 0
        assert time.monotonic() - began < 3.5
