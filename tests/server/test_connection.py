"""The HTTP connection on real ports: pipelining, upgrades, HTTP/1.0, heads without end, bytes that are no request.

What the connection received is cut anywhere; whatever a client does with it, its generation ends and the log is clean.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from server.connection import HEAD_BYTES, Connection
from tests.running_server import RunningServer, poll_until, simulated
from tests.server.open_request import OpenRequest
from tests.server.replies import COMPLETIONS

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
LONG: dict[str, Any] = {"prompt": [905], "ignore_eos": True, "max_tokens": 4_000}
SHORT: dict[str, Any] = {"prompt": [905], "ignore_eos": True, "max_tokens": 5}
H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
RESET = struct.pack("ii", 1, 0)


def post(body: Any, *lines: str, version: str = "1.1") -> bytes:
    """A request for a completion, with more header lines."""
    content = json.dumps(body).encode()
    head = [f"POST {COMPLETIONS} HTTP/{version}", "Host: x", f"Content-Length: {len(content)}", *lines]
    return "".join(f"{line}\r\n" for line in head).encode() + b"\r\n" + content


@pytest.fixture
def raw(echo_server: RunningServer) -> Iterator[socket.socket]:
    """A socket connected to the echoing server, which is idle before and within two seconds after, with a clean log."""
    echo_server.wait_idle()
    url = httpx.URL(echo_server.url)
    before = len(faults(echo_server))
    with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
        yield connection
    echo_server.wait_idle()
    assert faults(echo_server)[before:] == []


def faults(server: RunningServer) -> list[dict[str, Any]]:
    """What a log should not have after anything that a client does."""
    return [record for record in server.log_records() if record["level"] == "error" or "exception" in record]


def read_all(connection: socket.socket) -> bytes:
    """Up to the server's end of the connection, a reset being one."""
    parts: list[bytes] = []
    try:
        while part := connection.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "later"])
def test_a_client_that_pipelines_and_leaves(
    echo_server: RunningServer, raw: socket.socket, reset: bool, stream: bool, late: bool
) -> None:
    """The request that runs ends with its client, also when other requests wait behind it."""
    before = len(echo_server.log_records(event="request"))
    raw.sendall(post(LONG | {"stream": stream}) + (b"" if late else HEALTH * 2))
    poll_until(lambda: echo_server.metrics()["tailrace_sequences_running"] == 1, 2, lambda: "never ran")
    raw.sendall(HEALTH if late else b"")
    if reset:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    raw.close()
    echo_server.wait_idle(1)
    poll_until(lambda: len(echo_server.log_records(event="request")) > before, 2, lambda: "no account")
    (record,) = echo_server.log_records(event="request")[before:]
    assert record["end_state"] == "client_cancelled"
    assert record["generated_tokens"] < 4_000
    assert record["written_tokens"] <= record["generated_tokens"]


def test_pipelined_requests_are_answered_in_order(raw: socket.socket) -> None:
    """However many a client sends at once, also more than are read ahead."""
    raw.sendall(post(SHORT) + HEALTH * 40 + post(SHORT, "Connection: close"))
    answer = read_all(raw)
    assert answer.count(b"HTTP/1.1 200 OK") == 42
    assert answer.count(b'"text":" world world world world world"') == 2
    assert answer.index(b'"choices"') < answer.index(b'"status"') < answer.rindex(b'"choices"')


@pytest.mark.parametrize("upgrade", [H2C, "connection: upgrade\r\nUPGRADE: websocket\r\n"], ids=["h2c", "websocket"])
def test_an_upgrade_is_not_taken(raw: socket.socket, upgrade: str) -> None:
    """The body of a request that offers one is read, and the connection goes on in HTTP/1.1."""
    offer = post(SHORT, *upgrade.split("\r\n")[:-1])
    raw.sendall(offer + offer + post(SHORT, "Connection: close"))
    answer = read_all(raw)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.count(b'"completion_tokens":5') == 3


def test_bytes_that_are_no_request_during_an_answer(echo_server: RunningServer, raw: socket.socket) -> None:
    """No second head stands inside a body: the connection is cut, and its client counts as gone."""
    before = len(echo_server.log_records(event="request"))
    raw.sendall(post(LONG | {"stream": True}))
    answer = raw.recv(65_536)
    raw.sendall(b"\x16\x03\x01 garbage\r\n\r\n")
    answer += read_all(raw)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"invalid_http" not in answer
    poll_until(lambda: len(echo_server.log_records(event="request")) > before, 2, lambda: "no account")
    assert echo_server.log_records(event="request")[-1]["end_state"] == "client_cancelled"


@pytest.mark.parametrize("lines", [(), ("Connection: keep-alive",)], ids=["plain", "keep-alive"])
def test_a_stream_over_http_1_0(echo_server: RunningServer, raw: socket.socket, lines: tuple[str, ...]) -> None:
    """Its events come as they are, without chunk sizes, and the connection's end is theirs."""
    raw.sendall(post(SHORT | {"stream": True}, *lines, version="1.0"))
    head, _, body = read_all(raw).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"\r\nconnection: close" in head
    events = body.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    assert all(event.startswith(b"data: ") for event in events[:-1])
    assert len(events) == len(echo_server.events(COMPLETIONS, SHORT)) + 2


def test_a_whole_answer_over_http_1_0(raw: socket.socket) -> None:
    """It says its length, as over HTTP/1.1, and the connection ends."""
    raw.sendall(post(SHORT, version="1.0"))
    head, _, body = read_all(raw).partition(b"\r\n\r\n")
    assert f"\r\ncontent-length: {len(body)}\r\n".encode() in head
    assert json.loads(body)["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("size", [HEAD_BYTES + 1, 8_000_000])
@pytest.mark.parametrize("line", [b"x" * 100_000, b"x-more: y\r\n"], ids=["one line", "many"])
def test_a_head_without_end(raw: socket.socket, size: int, line: bytes) -> None:
    """It is refused with an error object as soon as it is too large, though its client still sends."""
    raw.sendall((b"GET /health HTTP/1.1\r\nHost: x\r\nx-first: " + line * (size // len(line) + 1))[:size])
    head, _, body = read_all(raw).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"\r\nx-request-id: " in head
    assert json.loads(body)["error"]["code"] == "request_head_too_large"


def test_a_full_socket_and_a_second_signal(demo_model: Path, tmp_path: Path) -> None:
    """An operator in a hurry does not wait for who takes nothing: status 0, and no traceback on the way."""
    flags = simulated(demo_model, "engine.step_interval_ms=1")
    flood = LONG | {"stream": True, "n": 60, "logprobs": 5, "max_tokens": 8_000}
    with (
        RunningServer(*flags, log_folder=tmp_path) as server,
        OpenRequest(server.url, COMPLETIONS, flood, receive_buffer=4_096) as frozen,
    ):
        assert frozen.response.status == 200
        server.wait_for({"tailrace_sequences_running": 60}, 2)
        server.process.send_signal(signal.SIGTERM)
        poll_until(lambda: httpx.get(f"{server.url}/ready").status_code == 503, 1, lambda: "still ready")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(4) == 0
        assert faults(server) == []
        assert "Traceback" not in server.log_file.read_text()


class Served:
    """An application behind our connection in this process, to cut what it receives at an exact byte."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.connection: Connection
        self.answer_seconds = 0.0
        self.reads_body = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Keeps the request, and answers nothing with a status."""
        body, more = b"", self.reads_body
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.requests.append((scope["path"], body))
        await asyncio.sleep(self.answer_seconds)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


@asynccontextmanager
async def connected(app: Served, head_seconds: float = 30) -> AsyncIterator[asyncio.StreamReader]:
    """A client of the application that only reads; what it sends is put into `app.connection`."""
    config, state = Config(app, http=Connection, ws="none", log_config=None), ServerState()
    config.load()
    made, lost = asyncio.Event(), asyncio.Event()

    class Watched(Connection):
        def connection_made(self, transport: Any) -> None:
            self.head_seconds = head_seconds
            super().connection_made(transport)
            app.connection = self
            made.set()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    server = await asyncio.get_running_loop().create_server(lambda: Watched(config, state, {}), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await made.wait()
        try:
            yield reader
        finally:
            writer.close()
            await writer.wait_closed()
            await lost.wait()


TRICKY = b"a\r\nupgrade: h2c\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n\r"
CHUNKS = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (TRICKY, b"\r\n\r\n", b"x")) + b"0\r\n\r\n"
CONVERSATION = b"".join(
    [
        f"POST /1 HTTP/1.1\r\nHost: x\r\n{H2C}Content-Length: {len(TRICKY)}\r\n\r\n".encode() + TRICKY,
        b"\r\n",  # as some send after a body
        f"POST /2 HTTP/1.1\r\n{H2C}Transfer-Encoding: chunked\r\n\r\n".encode() + CHUNKS,
        b"GET /3 HTTP/1.1\r\nuPgRaDe: websocket\r\nCoNnection: upgrade\r\n\r\n",
        f"POST /4 HTTP/1.1\r\n{H2C}Content-Length: 2\r\n\r\n{{}}".encode(),
        b"GET /5 HTTP/1.1\r\nConnection: close\r\n\r\n",
    ]
)
UNDERSTOOD = [("/1", TRICKY), ("/2", TRICKY + b"\r\n\r\n" + b"x"), ("/3", b""), ("/4", b"{}"), ("/5", b"")]


async def test_the_cut_does_not_matter() -> None:
    """Requests are the same wherever what came is cut: in two at every byte, and in pieces of every small size."""
    cuts = [[at] for at in range(1, len(CONVERSATION))]
    cuts += [list(range(size, len(CONVERSATION), size)) for size in range(1, 12)]
    for cut in cuts:
        app = Served()
        async with connected(app) as client:
            for start, end in zip([0, *cut], [*cut, len(CONVERSATION)], strict=True):
                app.connection.data_received(CONVERSATION[start:end])
            answer = await client.read()
        assert answer.count(b"HTTP/1.1 200 OK") == 5, cut
        assert app.requests == UNDERSTOOD, cut


@pytest.mark.parametrize("sent", [b"", b"GE", HEALTH[:-2], HEALTH + HEALTH[:-1]], ids=["none", "two", "most", "next"])
async def test_a_head_that_does_not_come(sent: bytes) -> None:
    """A connection is not held open by half a head, the first or a later one."""
    app = Served()
    async with connected(app, head_seconds=0.05) as client:
        if sent:
            app.connection.data_received(sent)
        answer = await asyncio.wait_for(client.read(), 2)
    assert answer.count(b"HTTP/1.1 200 OK") == len(app.requests) == sent.count(b"\r\n\r\n")


async def test_half_a_head_behind_a_running_request() -> None:
    """It is not what an answer is cut for."""
    app = Served()
    app.answer_seconds = 0.2
    async with connected(app, head_seconds=0.02) as client:
        app.connection.data_received(HEALTH + HEALTH[:9])
        answer = await asyncio.wait_for(client.read(), 2)
    assert answer.startswith(b"HTTP/1.1 200 OK")


async def test_a_body_that_nobody_waits_for() -> None:
    """After an answer that did not need it, the rest of a body has a head's time to come."""
    app = Served()
    app.reads_body = False
    async with connected(app, head_seconds=0.05) as client:
        app.connection.data_received(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        assert (await client.readline()).startswith(b"HTTP/1.1 200 OK")
        app.connection.data_received(b"1")
        await asyncio.wait_for(client.read(), 2)
