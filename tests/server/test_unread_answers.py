"""Answers that their client does not read to the end, generated or not: cut in time, and booked as what they were."""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer, poll_until, simulated
from tests.server.open_request import OpenRequest
from tests.server.raw_stream import RawStream, X
from tests.server.replies import COMPLETIONS

SMALL = 2_304
TIMEOUT_SECONDS = 1.0
LONG: dict[str, Any] = {"prompt": [X], "ignore_eos": True, "stream": True, "max_tokens": 8_000, "n": 8}
"""Far more than all buffers on the way hold."""


@pytest.fixture(scope="module")
def server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """As fast as it goes, a client may take nothing for a second, and the text kept for one is bounded."""
    settings = (
        "engine.step_interval_ms=0",
        f"server.slow_client_timeout_seconds={TIMEOUT_SECONDS}",
        "server.max_buffered_bytes=100000",
        "server.drain_timeout_seconds=0.2",
    )
    with RunningServer(*simulated(demo_model, *settings), log_folder=tmp_path_factory.mktemp("unread")) as running:
        yield running


def ended(server: RunningServer, request_id: str) -> dict[str, Any]:
    """The account, complete."""
    poll_until(lambda: bool(server.log_records(request_id=request_id, event="request")), 10, lambda: "no account")
    (record,) = server.log_records(request_id=request_id, event="request")
    return record


@pytest.mark.parametrize("stream", [True, False])
async def test_all_is_generated_and_little_was_read(server: RunningServer, stream: bool) -> None:
    """The engine is through, the client takes a little and resets: cancelled, delivered is what its kernel had."""
    body = LONG | {"n": 1, "stream": stream}
    client = RawStream(server.url, body, receive_buffer=SMALL)
    await client.open()
    while client.request_id is None:
        await client.read(256)
    poll_until(lambda: server.metrics()["tailrace_sequences_running"] == 0, 10, lambda: "still generating")
    for _ in range(4):
        await client.read(1_024)
    request_id = client.request_id
    client.reset()
    record = ended(server, request_id)
    assert (record["end_state"], record["phase"]) == ("client_cancelled", "delivery")
    assert record["delivered_is"] == "acknowledged"
    assert client.tokens <= record["delivered_tokens"] < record["generated_tokens"] / 2
    assert record["undelivered_tokens"] == record["generated_tokens"] - record["delivered_tokens"]
    assert [line for line in server.log_records() if line["level"] == "error" or "exception" in line] == []


def test_a_cut_is_counted_once(server: RunningServer) -> None:
    """Too much waits for a reader, who then takes nothing at all: one stream, one cut, in log and metrics alike."""
    before = server.metrics()["tailrace_slow_client_cuts_total"]
    with OpenRequest(server.url, COMPLETIONS, LONG, receive_buffer=SMALL) as request:
        record = ended(server, request.request_id)
    assert (record["end_state"], record["phase"]) == ("timed_out", "slow_client")
    assert server.metrics()["tailrace_slow_client_cuts_total"] == before + 1


def test_an_answer_that_generates_nothing(server: RunningServer) -> None:
    """Metrics asked for again and again and never read: the connection is cut like a slow reader's of a stream."""
    address = httpx.URL(server.url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        client.settimeout(10 * TIMEOUT_SECONDS)
        client.connect((address.host, address.port))
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n" * 12)
        since = time.monotonic()
        poll_until(lambda: was_reset(client), 10 * TIMEOUT_SECONDS, lambda: "never cut")
    assert time.monotonic() - since >= TIMEOUT_SECONDS / 2


def was_reset(client: socket.socket) -> bool:
    """Asked without taking anything: what it has unread would be given first."""
    poll = select.poll()
    poll.register(client, 0)
    return bool(poll.poll(0))


def test_a_second_answer_behind_a_slow_one_has_its_id_once(server: RunningServer) -> None:
    """However long a head had to wait for room, it is sent as it was made."""
    address = httpx.URL(server.url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        client.settimeout(10)
        client.connect((address.host, address.port))
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n" * 3 + b"GET /health HTTP/1.0\r\nHost: t\r\n\r\n")
        received = b""
        while data := client.recv(1_024):
            received += data
            time.sleep(0.002)  # a reader that is slow and moves
    heads = [part.partition(b"\r\n\r\n")[0] for part in received.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert len(heads) == 4
    assert all(head.lower().count(b"x-request-id:") == 1 for head in heads)


def test_who_asks_before_it_sends_and_is_refused(demo_model: Path, tmp_path: Path) -> None:
    """A refusal instead of `100 Continue` says that the connection closes, and it does."""
    flags = simulated(demo_model, "server.api_keys=secret")
    with RunningServer(*flags, log_folder=tmp_path) as server:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port), timeout=10) as client:
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
            )
            received = b""
            while data := client.recv(65_536):
                received += data
    assert received.startswith(b"HTTP/1.1 401")
    assert b"\r\nconnection: close\r\n" in received.lower()
    assert b"100 Continue" not in received


def test_who_is_cut_by_the_servers_end(demo_model: Path, tmp_path: Path) -> None:
    """A drain that can't wait for a reader cuts it: the server's doing, and booked so."""
    settings = ("engine.step_interval_ms=1", "server.drain_timeout_seconds=0.2")
    with RunningServer(*simulated(demo_model, *settings), log_folder=tmp_path) as server, ExitStack() as stack:
        body = LONG | {"n": 64, "logprobs": 5}
        request = stack.enter_context(OpenRequest(server.url, COMPLETIONS, body, receive_buffer=SMALL))
        request_id = request.request_id
        poll_until(lambda: server.metrics()["tailrace_streams_blocked"] == 1, 10, lambda: "never blocked")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(15) == 0
        record = ended(server, request_id)
    assert record["end_state"] == "upstream_error"


@pytest.mark.parametrize("seconds", ["1e9", ".inf", "0", "-1"])
def test_a_timeout_that_no_kernel_knows(demo_model: Path, tmp_path: Path, seconds: str) -> None:
    """It is refused at the start, by name."""
    flags = simulated(demo_model, f"server.slow_client_timeout_seconds={seconds}")
    with pytest.raises(AssertionError, match=r"server\.slow_client_timeout_seconds"):
        RunningServer(*flags, log_folder=tmp_path).__enter__()
