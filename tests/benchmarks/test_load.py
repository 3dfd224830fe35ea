"""The benchmarks' load client: what it counts is what was sent, wherever the network cuts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from benchmarks.load import ChunkedBody, EventReader, Load, StreamRecord, run, stream, summary
from tests.running_server import RunningServer

EVENTS = (
    b'data: {"choices":[{"text":"a"}]}\n\n',
    b": keep-alive\n\n",
    b'data: {"choices":[{"text":""}]}\n\ndata: {"choices":[{"text":"\xc3\xa9"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":3}}\n\n',
    b"data: [DONE]\n\n",
)
BODY = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", range(1, 12))
def test_pieces_of_any_size_say_the_same(size: int) -> None:
    """Chunk heads, events and characters may be cut anywhere."""
    chunks, record = ChunkedBody(), StreamRecord(0.0)
    events = EventReader(record)
    for at in range(0, len(BODY), size):
        events.feed(chunks.feed(BODY[at : at + size]))
    assert chunks.ended
    assert record.done
    assert len(record.text_at) == 2
    assert record.completion_tokens == 3


def test_an_error_event_fails_the_run() -> None:
    """A stream that the server gave up is no measurement."""
    with pytest.raises(RuntimeError, match="ended with an error"):
        EventReader(StreamRecord(0.0)).feed(b'data: {"error":{"message":"engine died"}}\n\n')


def test_figures_are_those_of_the_records() -> None:
    """First tokens from sending, gaps within a stream only, tokens by the server's own count."""
    records = [StreamRecord(1.0, [1.5, 1.6, 1.7], 3, done=True), StreamRecord(2.0, [2.5], 3, done=True)]
    figures = summary(records, seconds=2.0, cpu_seconds=0.5)
    assert (figures.tokens, figures.tokens_per_second, figures.tokens_per_event) == (6, 3.0, 1.5)
    assert figures.ttft_p50_ms == pytest.approx(500)
    assert figures.itl_p99_ms == pytest.approx(100)
    assert figures.client_cpu_share == 0.25


async def test_a_real_server_is_counted_right(echo_server: RunningServer) -> None:
    """Every token that was asked for, over more requests than streams."""
    model = echo_server.get("/v1/models").json()["data"][0]["id"]
    figures = await run(echo_server.url, Load(model, streams=3, requests=7, prompt_tokens=8, max_tokens=5))
    assert figures.tokens == 35
    assert figures.ttft_p50_ms > 0


async def test_a_refusal_fails_the_run(echo_server: RunningServer) -> None:
    """With what the server said."""
    with pytest.raises(RuntimeError, match="404"):
        await stream(echo_server.url, Load("no-such-model", 1, 1, 8, 5).bodies()[0])


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + BODY[:cut]
        for cut in (0, len(EVENTS[0]), len(BODY) - 20)
    ],
)
async def test_a_stream_that_breaks_off_fails_the_run(answer: bytes) -> None:
    """Without its `[DONE]` it is not complete."""

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RuntimeError, match="broke off"):
            await stream(f"http://127.0.0.1:{port}", b"")


def test_loads_are_repeatable_and_never_share_a_prompt() -> None:
    """The same load is the same requests; another seed's have other prompts, so that no cache helps."""
    bodies: Callable[[int], list[bytes]] = lambda seed: Load("m", 2, 4, 16, 8, seed).bodies()  # noqa: E731
    assert bodies(1) == bodies(1)
    assert len({*bodies(1), *bodies(2)}) == 8
