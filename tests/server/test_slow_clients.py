"""A `ClientSocket` on real sockets: readers that are slow, stand still, or vanished without a word.

Who moves gets every byte, and who does not is cut at its time; never much waits below us for either.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from server import measured_transport
from server.delivery import PIECE_BYTES, ClientSocket
from tests.server.served_socket import (
    HEADERS,
    SECONDS,
    SMALL,
    Client,
    ServedAnswer,
    eventually,
    forever,
    frame,
    paced,
    settled,
)


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both loops: the server's own, and Python's."""
    return "asyncio", {"use_uvloop": request.param}


async def test_what_waits_for_a_reader_that_stands_still() -> None:
    """Beside its own window, no more than two buffers, a piece and a packet; what else there is waits with us."""

    async def answer(client: ClientSocket) -> None:
        await client.start(200, {"content-length": str(10_000_000)})
        await client.end(b"x" * 10_000_000, tokens=9)

    served = ServedAnswer(answer)
    async with served.serving() as client:
        await client.connect(receive_buffer=SMALL)
        await client.read_until(b"\r\n\r\n")
        await eventually(settled(client, served))
        (sent,), (connection,) = served.sockets, served.connections
        waiting = connection.given_bytes - client.arrived
        assert waiting <= 2 * measured_transport.UNSENT_BYTES + PIECE_BYTES + 65_536, waiting
        assert (sent.written_tokens, connection.lost) == (0, False)
        head = client.received.index(b"\r\n\r\n") + 4
        while len(client.received) < head + 10_000_000:
            assert await client.read()
        await asyncio.wait_for(served.ended.wait(), SECONDS)
    assert (sent.written_tokens, sent.delivered_tokens, served.ends) == (9, 9, ["stayed"])


async def test_a_reader_that_stands_still_is_cut() -> None:
    """At its timeout and not before; what its kernel had not taken was not delivered."""
    served = ServedAnswer(forever, slow_client_timeout=0.2)
    async with served.serving() as client:
        await client.connect(receive_buffer=SMALL)
        await served.began.wait()
        await eventually(lambda: served.connections[0].congested)
        loop = asyncio.get_running_loop()
        since = loop.time()
        await asyncio.wait_for(served.ended.wait(), SECONDS)
        assert 0.19 <= loop.time() - since < 1
    (sent,) = served.sockets
    assert served.ends == ["slow"]
    assert sent.cut
    assert sent.delivered_tokens < sent.written_tokens


def byte_by_byte(client: Client) -> None:
    """As slowly as a program can that reads at all."""
    for _ in range(min(100, client.arrived - len(client.received))):
        client.received += client.socket.recv(1)


@pytest.mark.parametrize(("read", "size"), [(Client.drain, 300_000), (byte_by_byte, 200_000)])
async def test_a_reader_that_moves_gets_every_byte(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[Client], None], size: int
) -> None:
    """It takes a little within each timeout; one write takes many timeouts, and neither we nor the kernel cut it."""
    monkeypatch.setattr(measured_transport, "SILENCE_MARGIN_SECONDS", 0)

    async def answer(client: ClientSocket) -> None:
        await client.start(200, HEADERS)
        await client.end(b"\x00" * size, tokens=1)

    served = ServedAnswer(answer, slow_client_timeout=0.25)
    async with served.serving() as client:
        await client.connect(receive_buffer=SMALL)
        loop = asyncio.get_running_loop()
        since = loop.time()
        while not served.ended.is_set():
            await asyncio.sleep(0.001 if read is byte_by_byte else 0.01)
            read(client)
        assert loop.time() - since > 2 * 0.25
        await client.read_until(b"\r\n0\r\n\r\n")
        await asyncio.wait_for(served.ended.wait(), SECONDS)
    assert client.received.count(b"\x00") == size
    assert (served.ends, served.sockets[0].delivered_tokens) == (["stayed"], 1)


async def test_a_cut_by_another_wakes_who_waits() -> None:
    """`abort` ends a write that waits as a slow client's, long before its timeout."""
    served = ServedAnswer(forever)
    async with served.serving() as client:
        await client.connect(receive_buffer=SMALL)
        await served.began.wait()
        await eventually(lambda: served.connections[0].congested)
        served.sockets[0].abort()
        await asyncio.wait_for(served.ended.wait(), SECONDS)
    assert served.sockets[0].cut
    assert served.ends in (["slow"], ["left"])  # whichever of the write and the watch hears of it first


async def test_a_cancelled_write_writes_nothing() -> None:
    """A write that waits for room can be cancelled: none of it goes out, nor is it counted, and the next one does."""
    cancelled = asyncio.Event()

    async def answer(client: ClientSocket) -> None:
        await client.start(200, HEADERS)
        while not served.connections[0].congested:
            await client.write(b"a" * 9_000, tokens=1)
            await asyncio.sleep(0)
        before = client.written_tokens, client.bytes_written
        blocked = asyncio.ensure_future(client.write(b"b" * 1_000, tokens=1))
        await asyncio.sleep(0)  # it begins, and waits
        blocked.cancel()
        await asyncio.gather(blocked, return_exceptions=True)
        assert blocked.cancelled()
        assert (client.written_tokens, client.bytes_written) == before
        cancelled.set()
        await client.end(b"c" * 1_000, tokens=1)

    served = ServedAnswer(answer)
    async with served.serving() as client:
        await client.connect(receive_buffer=SMALL)
        await cancelled.wait()
        await client.read_until(b"\r\n0\r\n\r\n")
        await asyncio.wait_for(served.ended.wait(), SECONDS)
    assert b"bbb" not in client.received
    assert client.received.count(b"c" * 1_000) == 1
    assert served.ends == ["stayed"]


async def test_the_accepted_sockets_options() -> None:
    """Keep-alive, a bound on what is unsent, and a bound on silence that is later than the slow client's own."""
    served = ServedAnswer(paced(1), slow_client_timeout=7)
    async with served.serving() as client:
        await client.connect()
        await served.began.wait()
        accepted = served.connections[0].transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_NOTSENT_LOWAT", "TCP_USER_TIMEOUT")
        values = [accepted.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
        assert values == [30, 15, 3, 16_384, 12_000]


async def test_a_client_that_vanished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cable cut, it says nothing and acknowledges nothing: found soon after the slow client's timeout."""
    monkeypatch.setattr(measured_transport, "SILENCE_MARGIN_SECONDS", 0.1)
    more = asyncio.Event()

    async def answer(client: ClientSocket) -> None:
        await client.start(200, HEADERS)
        await client.write(frame(0), tokens=1)
        await more.wait()
        await client.write(frame(1), tokens=1)
        await asyncio.Event().wait()

    served = ServedAnswer(answer, slow_client_timeout=0.2)
    async with served.serving() as client:
        await client.connect()
        await client.read_until(b"\n\n\r\n")
        client.vanish()
        more.set()
        await asyncio.wait_for(served.ended.wait(), SECONDS)
    (sent,) = served.sockets
    assert sent.cut
    assert (sent.written_tokens, sent.delivered_tokens, sent.delivered_is) == (2, 1, "acknowledged")


async def test_a_client_that_vanished_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing under way it is asked whether it is there, as TCP's keep-alive does, and found as well."""
    for name in ("IDLE", "INTERVAL"):
        monkeypatch.setattr(measured_transport, f"KEEPALIVE_{name}_SECONDS", 1)
    monkeypatch.setattr(measured_transport, "SILENCE_MARGIN_SECONDS", 0.1)
    served = ServedAnswer(paced(1), slow_client_timeout=0.2)
    async with served.serving() as client:
        await client.connect()
        await client.read_until(b"still here\n\n\r\n")
        await eventually(settled(client, served))
        client.vanish()
        await asyncio.wait_for(served.ended.wait(), SECONDS)
    (sent,) = served.sockets
    assert sent.cut
    assert (sent.written_tokens, sent.delivered_tokens) == (1, 1)
