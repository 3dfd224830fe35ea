"""A thousand slow readers and a fast one: it hardly notices them, and they cost little memory and lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.running_server import RunningServer, simulated
from tests.server.raw_stream import XS, RawStream

SLOW_STREAMS = 1_000
WINDOW_BYTES = 16_384
STEP_SECONDS = 0.08
GAPS = 200
"""Inter-token gaps of the fast reader in each half of the comparison."""


@pytest.fixture
def server(demo_model: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """Room for all at once."""
    settings = (
        f"engine.step_interval_ms={STEP_SECONDS * 1000:g}",
        "engine.max_num_seqs=1100",
        "engine.num_kv_blocks=300000",
        "engine.max_num_batched_tokens=20000",
        "server.max_queued_requests=2000",
        "server.slow_client_timeout_seconds=60",
    )
    flags = simulated(demo_model, *settings)
    with RunningServer(*flags, log_folder=tmp_path) as running:
        yield running


async def fast_gaps(url: str) -> list[float]:
    """The gaps between the arrivals of a reader that takes everything at once."""
    stream = RawStream(url, XS | {"max_tokens": GAPS + 1})
    await stream.open()
    await stream.read_to_end()
    stream.close()
    assert stream.tokens == GAPS + 1
    return [later - earlier for earlier, later in pairwise(stream.arrivals)]


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


async def read_slowly(stream: RawStream) -> None:
    """About one event's bytes a second, for as long as the test lasts."""
    while not stream.ended:
        await stream.read(256)
        await asyncio.sleep(1)  # a slow reader's pace is what this test is about


@asynccontextmanager
async def slow_readers(url: str) -> AsyncIterator[list[RawStream]]:
    """All open at once, each with a small receive window."""
    streams = [RawStream(url, XS | {"max_tokens": 8_000}, receive_buffer=WINDOW_BYTES) for _ in range(SLOW_STREAMS)]
    for stream in streams:
        await stream.open()
    readers = [asyncio.ensure_future(read_slowly(stream)) for stream in streams]
    try:
        yield streams
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for stream in streams:
            stream.close()


def resident(server: RunningServer) -> float:
    return server.metrics()["process_resident_memory_bytes"]


async def until_blocked(server: RunningServer) -> None:
    """Until the sockets of all slow readers are full: nothing more is written, though the engine goes on."""
    blocked = 0.0
    for _ in range(600):
        blocked = (await asyncio.to_thread(server.metrics))["tailrace_streams_blocked"]
        if blocked >= SLOW_STREAMS * 0.95:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"only {blocked:g} streams are blocked")


@pytest.mark.timeout(180)
async def test_a_thousand_slow_readers(server: RunningServer) -> None:
    """The fast one's p99 gap grows by less than 20 %; a slow stream costs less than 64 KiB, and none is cut."""
    alone = p99(await fast_gaps(server.url))
    before = resident(server)
    async with slow_readers(server.url) as streams:
        await until_blocked(server)
        beside = p99(await fast_gaps(server.url))
        grown = (resident(server) - before) / SLOW_STREAMS
        assert not any(stream.ended for stream in streams)
    assert beside < alone * 1.2, (alone, beside)
    assert grown < 64 * 1024, grown
    assert server.metrics()["tailrace_slow_client_cuts_total"] == 0
    server.wait_for({"tailrace_sequences_running": 0}, 10)
