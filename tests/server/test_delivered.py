"""The client's own count is the account's `delivered`: exact for a complete answer, else but for what was in flight."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running_server import RunningServer, poll_until, simulated
from tests.server.raw_stream import XS, RawStream

DROPPED = 1_000
AT_ONCE = 50
STEP_SECONDS = 0.002


@pytest.fixture
def server(demo_model: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """A step every 2 ms."""
    flags = simulated(demo_model, f"engine.step_interval_ms={STEP_SECONDS * 1000:g}", "engine.max_num_seqs=128")
    with RunningServer(*flags, log_folder=tmp_path) as running:
        yield running


async def drop(url: str, chance: random.Random) -> RawStream:
    """A stream that its client leaves somewhere, having taken all that its kernel had."""
    stream = RawStream(url, XS | {"max_tokens": 2_000}, receive_buffer=chance.choice((0, 4_096)))
    await stream.open()
    await stream.read_events(chance.randint(1, 40))
    stream.take_buffered()
    (stream.close if chance.random() < 0.5 else stream.reset)()
    return stream


async def complete(url: str, chance: random.Random) -> RawStream:
    stream = RawStream(url, XS | {"max_tokens": chance.randint(1, 100)})
    await stream.open()
    await stream.read_to_end()
    stream.close()
    return stream


async def all_of(url: str, dropped: int, completed: int) -> list[RawStream]:
    chance = random.Random(7)
    gate = asyncio.Semaphore(AT_ONCE)
    makers = [drop] * dropped + [complete] * completed
    chance.shuffle(makers)

    async def one(number: int) -> RawStream:
        async with gate:
            return await makers[number](url, random.Random(number))

    return list(await asyncio.gather(*map(one, range(len(makers)))))


def accounts(server: RunningServer, count: int) -> dict[str, dict[str, Any]]:
    """The log's lines by request id, once all are there."""
    poll_until(lambda: len(server.log_records(event="request")) >= count, 10, lambda: "accounts are missing")
    return {record["request_id"]: record for record in server.log_records(event="request")}


@pytest.mark.timeout(120)
async def test_the_clients_count(server: RunningServer) -> None:
    """Of 1,000 dropped streams delivered is the client's count and what was on its way; of 200 others it is exact."""
    streams = await all_of(server.url, DROPPED, 200)
    by_id = accounts(server, len(streams))
    over = []
    for stream in streams:
        record = by_id[stream.request_id or ""]
        if stream.completed:
            assert record["end_state"] == "completed"
            assert record["delivered_tokens"] == stream.tokens == record["completion_tokens"]
            continue
        assert record["end_state"] == "client_cancelled"
        assert record["delivered_is"] == "acknowledged"
        assert stream.tokens <= record["delivered_tokens"] <= record["written_tokens"] <= record["generated_tokens"]
        over.append(record["delivered_tokens"] - stream.tokens)
    assert len(over) == DROPPED
    # Between the client's last look and its leaving one step may come, on a busy machine some more.
    assert sorted(over)[len(over) // 2] <= 1
    assert max(over) * STEP_SECONDS < 0.25, max(over)
