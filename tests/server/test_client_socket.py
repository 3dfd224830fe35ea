"""A `ClientSocket` on a hand-made `send`: messages, pieces, tokens, and who is slow or gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.client_connection import ClientConnection
from server.delivery import PIECE_BYTES, ClientGoneError, ClientSocket, SlowClientError
from server.frame_ledger import FRAMES_KEPT

Message = dict[str, Any]


async def test_the_messages_of_an_answer() -> None:
    """Start, body parts, end: ASGI's messages in order, and bytes counted when they were accepted."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    socket = ClientSocket(send, 1)  # type: ignore[arg-type]
    await socket.start(200, {"content-type": "text/plain"})
    await socket.write(b"ab")
    await socket.end(b"c")
    assert sent == [
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]},
        {"type": "http.response.body", "body": b"ab", "more_body": True},
        {"type": "http.response.body", "body": b"c", "more_body": False},
    ]
    assert (socket.started, socket.bytes_written) == (True, 3)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
@pytest.mark.parametrize("last", [False, True])
async def test_a_large_body_goes_in_pieces(size: int, last: bool) -> None:
    """Each as small as it may be, none empty but of an empty body; its tokens count once, when all was accepted."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        assert socket.written_tokens == 0

    socket = ClientSocket(send, 1)  # type: ignore[arg-type]
    await (socket.end if last else socket.write)(b"x" * size, tokens=7)
    assert b"".join(message["body"] for message in sent) == b"x" * size
    assert len(sent) == max(1, -(-size // PIECE_BYTES))
    assert [message["more_body"] for message in sent] == [True] * (len(sent) - 1) + [not last]
    assert (socket.bytes_written, socket.written_tokens, socket.delivered_tokens) == (size, 7, 7)
    assert socket.delivered_is == "written"


async def test_a_client_that_takes_nothing() -> None:
    """A write that is not accepted in time is a slow client's, and its bytes are not counted."""

    async def send(_: Message) -> None:
        await asyncio.Event().wait()

    socket = ClientSocket(send, 0.01)  # type: ignore[arg-type]
    for call in (socket.start(200, {}), socket.write(b"x"), socket.end(b"x")):
        with pytest.raises(SlowClientError, match=r"0\.01 s"):
            await call
    assert socket.bytes_written == 0


class Connection(ClientConnection):
    """The one below an answer, of a server that tells little."""

    def __init__(self) -> None:
        self.lost = False
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


async def test_a_connection_that_was_lost() -> None:
    """What a server took in silence for a client that is gone was not written."""
    connection = Connection()

    async def send(message: Message) -> None:
        connection.lost = message.get("body") == b"lost"

    socket = ClientSocket(send, 1, connection)  # type: ignore[arg-type]
    await socket.write(b"ab")
    for call in (socket.write, socket.end):
        with pytest.raises(ClientGoneError):
            await call(b"lost")
    assert (socket.bytes_written, connection.aborted) == (2, False)


async def test_nothing_is_sent_after_a_cut() -> None:
    """Whoever cuts a slow client: it is one from then on, and so is a client whom the kernel gave up on."""

    async def send(_: Message) -> None:
        raise AssertionError("sent after the cut")

    connection = Connection()
    socket = ClientSocket(send, 1, connection)  # type: ignore[arg-type]
    socket.abort()
    stalled = Connection()
    stalled.stalled = True
    for cut in (socket, ClientSocket(send, 1, stalled)):  # type: ignore[arg-type]
        for call in (cut.start(200, {}), cut.write(b"x"), cut.end(b"x")):
            with pytest.raises(SlowClientError):
                await call
        assert cut.cut
    assert connection.aborted


async def test_a_slow_clients_connection_is_cut() -> None:
    """What it did not take is not kept for it, and without word of what it takes nothing is sent twice."""
    connection = Connection()
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        await asyncio.Event().wait()

    with pytest.raises(SlowClientError):
        await ClientSocket(send, 0.01, connection).write(b"x")  # type: ignore[arg-type]
    assert connection.aborted
    assert len(sent) == 1


class Measured(Connection):
    """A connection of a kernel that tells: a byte of the answer is one on the wire."""

    given_bytes = 0
    acknowledged_bytes: int | None = 0


@pytest.mark.parametrize("told", [True, False])
async def test_a_long_stream_keeps_no_ledger_of_what_arrived(told: bool) -> None:
    """Nor of anything, once the kernel has no word for it: then written is what is known."""
    connection = Measured()

    async def send(message: Message) -> None:
        connection.given_bytes += len(message["body"])
        connection.acknowledged_bytes = connection.given_bytes - 5 if told else None

    socket = ClientSocket(send, 1, connection)  # type: ignore[arg-type]
    for _ in range(3 * FRAMES_KEPT):
        await socket.write(b"frame", tokens=2)
    connection.lost = True
    assert socket.written_tokens == 6 * FRAMES_KEPT
    assert socket.delivered_tokens == 6 * FRAMES_KEPT - (2 if told else 0)
    assert socket.delivered_is == ("acknowledged" if told else "written")
    kept = 0 if socket._ledger is None else len(socket._ledger._ends)
    assert kept < (FRAMES_KEPT if told else 1)


async def test_an_answer_on_a_used_connection() -> None:
    """Offsets are the connection's: what it carried before is no part of this answer's count."""
    connection = Measured()
    connection.given_bytes = connection.acknowledged_bytes = 1_000

    async def send(message: Message) -> None:
        connection.given_bytes += len(message["body"])

    socket = ClientSocket(send, 1, connection)  # type: ignore[arg-type]
    for acknowledged, delivered in ((1_000, 0), (1_004, 0), (1_005, 3), (1_010, 6)):
        connection.lost = False
        if acknowledged == 1_000:
            await socket.write(b"frame", tokens=3)
            await socket.write(b"frame", tokens=3)
        connection.lost = True
        connection.acknowledged_bytes = acknowledged
        assert socket.delivered_tokens == delivered


class Taking(Connection):
    """A connection that takes parts of a body past ASGI's messages, until it is told not to."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []
        self.full = False
        self.breaks = False

    @property
    def congested(self) -> bool:
        return self.full

    def write_part(self, data: bytes) -> bool:
        if self.full:
            return False
        self.lost = self.breaks
        self.parts.append(data)
        return True


async def test_the_short_way_and_the_long_one() -> None:
    """What the connection takes at once makes no message; what it does not, and what is too large, makes its own."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    connection = Taking()
    socket = ClientSocket(send, 1, connection)  # type: ignore[arg-type]
    looks = [socket.writes_now]  # not before it has
    await socket.write(b"ab", 1)
    looks.append(socket.writes_now)
    connection.full = True
    looks.append(socket.writes_now)
    assert looks == [False, True, False]
    assert not socket.write_now(b"cd", 1)
    await socket.write(b"cd", 1)
    connection.full = False
    await socket.write(b"x" * (PIECE_BYTES + 1), 1)
    assert socket.write_now(b"ef", 1)
    assert connection.parts == [b"ab", b"ef"]
    assert [len(message["body"]) for message in sent] == [2, PIECE_BYTES, 1]
    assert (socket.bytes_written, socket.written_tokens) == (PIECE_BYTES + 7, 4)


async def test_the_short_way_to_nobody() -> None:
    """A part that finds the client gone is not counted, and none follows."""
    connection = Taking()
    socket = ClientSocket(None, 1, connection)  # type: ignore[arg-type]
    await socket.write(b"ab", 1)
    connection.breaks = True
    for _ in range(2):
        with pytest.raises(ClientGoneError):
            socket.write_now(b"cd", 1)
        assert not socket.writes_now
    assert (socket.bytes_written, socket.written_tokens) == (2, 1)
