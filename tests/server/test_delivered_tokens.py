"""A `ClientSocket` on real sockets: what was delivered to a client, to the token, however and whenever it leaves.

The client's own count is what its kernel received. Both ends live in one loop: neither moves between two figures.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from server.delivery import ClientSocket
from server.measured_transport import MeasuredTransport
from tests.server.served_socket import (
    HEADERS,
    SECONDS,
    SMALL,
    Client,
    ServedAnswer,
    eventually,
    forever,
    frame,
    frames_in,
    paced,
    settled,
)

LEAVING: dict[str, Callable[[Client], None]] = {"reset": Client.reset, "close": Client.close}


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both loops: the server's own, and Python's."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("length", [None, 60])
async def test_bytes_given_are_the_bytes_on_the_wire(version: str, length: int | None) -> None:
    """To the byte after every write: heads, chunk sizes and ends, interim answers, with a known length and without."""
    marks: list[int] = []

    async def answer(client: ClientSocket) -> None:
        marks.append(connection().given_bytes)
        await client.start(200, HEADERS | ({"content-length": str(length)} if length else {}))
        for size in (1, 9, 0, 20):
            await client.write(b"#" * size)
            marks.append(connection().given_bytes)
        await client.end(b"#" * 30)
        marks.append(connection().given_bytes)

    served = ServedAnswer(answer)

    def connection() -> Any:
        return served.connections[0]

    async with served.serving() as client:
        expecting = b"POST /answer HTTP/%b\r\nExpect: 100-continue\r\nContent-Length: 2\r\n" % version.encode()
        await client.connect(expecting + b"Connection: close\r\n\r\n")
        await client.send(b"{}")
        received = await client.read_all()
    assert marks[-1] == len(received)
    ends = [received[:mark].count(b"#") for mark in marks]
    assert ends == [0, 1, 10, 10, 30, 60]


async def test_a_stream_that_is_read_to_its_end() -> None:
    """The client's count, the written and the delivered are one, whatever the connection does afterwards."""

    async def answer(client: ClientSocket) -> None:
        await client.start(200, HEADERS)
        for index in range(2_500):
            await client.write(frame(index), tokens=2)
        await client.end(frame(2_500), tokens=2)

    served = ServedAnswer(answer)
    async with served.serving() as client:
        await client.connect()
        await client.read_until(b"\r\n0\r\n\r\n")
        assert frames_in(client.peek(), size=2) == 5_002
        await asyncio.wait_for(served.ended.wait(), SECONDS)
        client.reset()
        await eventually(lambda: served.connections[0].lost)
    (sent,) = served.sockets
    assert served.ends == ["stayed"]
    assert (sent.written_tokens, sent.delivered_tokens, sent.delivered_is) == (5_002, 5_002, "acknowledged")


@pytest.mark.parametrize("leave", LEAVING)
@pytest.mark.parametrize("receive_buffer", [0, SMALL], ids=["roomy", "small"])
async def test_a_client_that_leaves_when_all_is_quiet(leave: str, receive_buffer: int) -> None:
    """Delivered are exactly the frames that its kernel has whole, however much it read of them and how much waits."""
    chance = random.Random(4)
    for frames in (0, 1, 7, 40, 300):
        served = ServedAnswer(paced(frames))
        async with served.serving() as client:
            await client.connect(receive_buffer=receive_buffer)
            await client.read_until(b"\r\n\r\n")
            for _ in range(chance.randrange(4)):
                client.drain()
                await asyncio.sleep(0.002)
            await eventually(settled(client, served))
            received = client.peek()
            LEAVING[leave](client)
            await asyncio.wait_for(served.ended.wait(), SECONDS)
        (sent,) = served.sockets
        assert (sent.delivered_tokens, sent.delivered_is) == (frames_in(received), "acknowledged")
        assert sent.delivered_tokens <= sent.written_tokens <= frames


@pytest.mark.parametrize("leave", LEAVING)
async def test_a_client_that_leaves_at_a_random_moment(leave: str) -> None:
    """Never more than it got, and never less than what was acknowledged before: what lies between was in flight."""
    chance = random.Random(5)
    for _ in range(60):
        served = ServedAnswer(forever)
        async with served.serving() as client:
            await client.connect(receive_buffer=chance.choice([0, SMALL]))
            for _ in range(chance.randrange(30)):
                if chance.random() < 0.8:
                    client.drain()
                await asyncio.sleep(0)
            await served.began.wait()
            (sent,), (connection,) = served.sockets, served.connections
            received = client.peek()
            acknowledged = connection.acknowledged_bytes
            LEAVING[leave](client)
            await asyncio.wait_for(served.ended.wait(), SECONDS)
        assert acknowledged is not None
        assert sent.delivered_is == "acknowledged"
        assert frames_in(received[:acknowledged]) <= sent.delivered_tokens <= frames_in(received) <= sent.written_tokens


@pytest.mark.parametrize("told", [0, None, 10**9], ids=["emulated", "nothing", "nonsense"])
async def test_a_kernel_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, told: int | None) -> None:
    """Without a figure that fits with what we gave it, written counts as delivered, and that is said."""
    monkeypatch.setattr(MeasuredTransport, "taken_bytes", told)
    served = ServedAnswer(paced(40))
    async with served.serving() as client:
        await client.connect()
        await eventually(lambda: frames_in(client.peek()) == 40)
        client.close()
        await asyncio.wait_for(served.ended.wait(), SECONDS)
    (sent,) = served.sockets
    assert (sent.delivered_tokens, sent.delivered_is) == (40, "written")
