"""Clients that send no more, on real sockets: who still reads is served to the end, who left is found by a probe.

The answers here do what a stream of the server does: they write something at once when they hear of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from server import measured_transport
from server.delivery import ClientSocket
from server.half_close import HalfClose
from tests.server.served_socket import REQUEST, SECONDS, Client, ServedAnswer, eventually

HEADERS = {"content-type": "text/event-stream"}
END = b"last words\r\n0\r\n\r\n"


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both loops: the server's own, and Python's."""
    return "asyncio", {"use_uvloop": request.param}


class ProbingStream:
    """A stream that says nothing of itself until `go` is set, but writes a comment when its client sends no more."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.heard = 0
        self._wake = asyncio.Event()

    async def __call__(self, client: ClientSocket) -> None:
        client.on_half_close = self._on_half_close
        going = asyncio.ensure_future(self.go.wait())
        try:
            while not going.done():
                waking = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait({going, waking}, return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
                if self._wake.is_set():
                    self._wake.clear()
                    await self._probe(client)
            await self._start(client)
            await client.end(b"last words", tokens=1)
        finally:
            going.cancel()

    def _on_half_close(self) -> None:
        self.heard += 1
        self.probe_again()

    def probe_again(self) -> None:
        """As a stream does that has a token to say, or is to be kept alive."""
        self._wake.set()

    async def _start(self, client: ClientSocket) -> None:
        if not client.started:
            await client.start(200, HEADERS)

    async def _probe(self, client: ClientSocket) -> None:
        await self._start(client)
        await client.write(b": probe\n\n")


async def whole(client: ClientSocket) -> None:
    """An answer that can write nothing before it is whole, and never is."""
    await client.start(200, {"content-length": "1"})
    await asyncio.Event().wait()


@pytest.mark.parametrize("when", ["with the request", "later"])
async def test_who_still_reads_is_served(when: str) -> None:
    """A client that only shut its sending side, as netcat does, gets all of its stream; then the connection ends."""
    stream = ProbingStream()
    served = ServedAnswer(stream)
    async with served.serving() as client:
        await client.connect()
        if when == "later":
            await served.began.wait()
        client.send_no_more()
        await client.read_until(b": probe\n\n")
        stream.go.set()
        received = await client.read_all()
        await asyncio.wait_for(served.ended.wait(), SECONDS)
    assert received.endswith(END)
    assert (served.ends, stream.heard) == (["stayed"], 1)
    (sent,) = served.sockets
    assert (sent.written_tokens, sent.delivered_tokens, sent.cut) == (1, 1, False)


@pytest.mark.parametrize("leave", [Client.close, Client.reset], ids=["close", "reset"])
async def test_who_left_is_found_by_the_probe(leave: Callable[[Client], None]) -> None:
    """The probe is answered with a reset, which is the loss: within a round trip, though nothing else is written."""
    stream = ProbingStream()
    served = ServedAnswer(stream)
    loop = asyncio.get_running_loop()
    async with served.serving() as client:
        await client.connect()
        await served.began.wait()
        leave(client)
        since = loop.time()
        await asyncio.wait_for(served.ended.wait(), SECONDS)
        assert loop.time() - since < 0.5
    assert (served.ends, served.sockets[0].cut) == (["left"], False)


@pytest.mark.parametrize("leave", [Client.close, Client.reset], ids=["close", "reset"])
async def test_who_leaves_after_its_half_is_found(leave: Callable[[Client], None]) -> None:
    """By a reset of its own at once; when it closed in silence, by the next thing that is written to it."""
    stream = ProbingStream()
    served = ServedAnswer(stream)
    async with served.serving() as client:
        await client.connect()
        client.send_no_more()
        await client.read_until(b": probe\n\n")
        leave(client)
        if leave is Client.close:
            stream.probe_again()
        await asyncio.wait_for(served.ended.wait(), SECONDS)
    assert (served.ends, stream.heard) == (["left"], 1)


@pytest.mark.parametrize("when", ["with the request", "later"])
async def test_an_answer_that_can_not_probe_loses_its_client(when: str) -> None:
    """Nothing can be written in the middle of a whole answer: who sends no more is taken for gone, at once."""
    served = ServedAnswer(whole)
    async with served.serving() as client:
        await client.connect()
        if when == "later":
            await served.began.wait()
        client.send_no_more()
        await asyncio.wait_for(served.ended.wait(), SECONDS)
        await client.read_all()
    assert served.ends == ["left"]


async def test_a_request_that_is_not_whole_is_lost() -> None:
    """What it lacks will not come."""
    served = ServedAnswer(whole)
    async with served.serving() as client:
        await client.connect(REQUEST[:-1])
        client.send_no_more()
        assert await client.read_all() == b""
        await eventually(lambda: served.connections[0].lost)
    assert (served.ends, served.sockets) == (["no request"], [])


async def test_an_answer_that_does_not_watch_is_given() -> None:
    """Short answers, errors among them, ask nothing more of their client: it gets them."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async with ServedAnswer(whole).serving(app) as client:
        await client.connect()
        client.send_no_more()
        assert (await client.read_all()).endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("rest", [b"", REQUEST[:30], REQUEST[:-1]], ids=["whole", "half a head", "half a body"])
async def test_pipelined_requests_before_the_end_are_answered(rest: bytes) -> None:
    """Those that were whole, in order; what is not whole then is forgotten, and the connection ends."""
    stream = ProbingStream()
    served = ServedAnswer(stream)
    async with served.serving() as client:
        await client.connect(REQUEST * 3 + rest)
        await served.began.wait()
        client.send_no_more()
        await client.read_until(b": probe\n\n")
        stream.go.set()
        received = await client.read_all()
        await eventually(lambda: len(served.ends) == 3)
    assert received.count(b"HTTP/1.1 200") == received.count(END) == 3
    assert served.ends == ["stayed"] * 3


async def test_a_probe_that_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither acknowledged nor reset, its client having vanished: it is cut as a slow one."""
    monkeypatch.setattr(measured_transport, "SILENCE_MARGIN_SECONDS", 0.1)
    stream = ProbingStream()
    served = ServedAnswer(stream, slow_client_timeout=0.2)
    async with served.serving() as client:
        await client.connect()
        await served.began.wait()
        client.send_no_more()
        client.vanish()
        await asyncio.wait_for(served.ended.wait(), SECONDS)
    assert stream.heard == 1
    assert served.sockets[0].cut


STEPS: dict[str, Callable[[HalfClose, list[str]], None]] = {
    "comes": lambda half_close, _: half_close.come(),
    "asks": lambda half_close, _: half_close.ask(),
    "next": lambda half_close, _: half_close.begin_answer(),
    "wants": lambda half_close, told: setattr(half_close, "callback", lambda: told.append("answer")),
}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("comes", []),
        ("asks", []),
        ("comes asks", ["connection"]),
        ("asks comes", ["connection"]),
        ("wants comes", ["answer"]),
        ("comes wants", ["answer"]),
        ("wants asks comes wants asks", ["answer"]),
        ("comes asks asks wants", ["connection"]),
        ("comes wants next asks", ["answer", "connection"]),
        ("comes wants next wants", ["answer", "answer"]),
        ("wants next comes", []),
    ],
)
async def test_who_is_told(steps: str, expected: list[str]) -> None:
    """Whatever the order: an answer that wants to hear does, once; one that only asks has lost its client."""
    told: list[str] = []
    half_close = HalfClose(lambda: told.append("connection"))
    for step in steps.split():
        STEPS[step](half_close, told)
        await asyncio.sleep(0)
    assert told == expected
