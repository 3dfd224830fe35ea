"""Thousands of streams, half of them dropped at any moment in any way, and one engine crash: nothing is left of them.

Afterwards there are as many end states as streams, and every token generated is accounted for.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running_server import RunningServer, poll_until, simulated
from tests.server.raw_stream import XS, RawStream

STREAMS = 5_000
WARM_UP = 3_000
"""Streams after which the allocator has what a busy server keeps."""
AT_ONCE = 400
MOST_CHOICES = 4
SEED = 20_261_130


@pytest.fixture
def server(demo_model: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """Crashes once, about in the middle, and is back soon."""
    settings = (
        "engine.step_interval_ms=5",
        "engine.max_num_seqs=128",
        "engine.num_kv_blocks=2048",
        "engine.restart_backoff_seconds=0.1",
        "engine.faults.crash_after_steps=1000",
        "server.max_queued_requests=10000",
        "server.slow_client_timeout_seconds=1",
        "server.usage_max_records=1000",
    )
    flags = simulated(demo_model, *settings)
    with RunningServer(*flags, log_folder=tmp_path) as running:
        yield running


Way = Callable[[RawStream, random.Random], Awaitable[None]]


async def to_the_end(stream: RawStream, _chance: random.Random) -> None:
    await stream.read_to_end()
    stream.close()


async def slowly(stream: RawStream, chance: random.Random) -> None:
    """A few bytes at a time."""
    while await stream.read(chance.randint(1, 400)):
        pass
    stream.close()


async def cut(stream: RawStream, chance: random.Random) -> None:
    """Gone after some events, or before the first; by FIN, RST, or with what came unread."""
    events = chance.choice((0, 0, 1, 2, 5, 20))
    if events:
        await stream.read_events(events)
    if chance.random() < 0.5:
        stream.take_buffered()
    chance.choice((stream.close, stream.reset))()


async def silence(stream: RawStream, chance: random.Random) -> None:
    """Reads some and then nothing for a while, before it goes without a word."""
    await stream.read_events(chance.randint(0, 3))
    await asyncio.sleep(chance.random() * 0.3)  # the behaviour under test, not a wait for anything
    stream.reset()


WAYS: list[tuple[Way, float]] = [(to_the_end, 0.45), (slowly, 0.05), (cut, 0.45), (silence, 0.05)]


async def run_streams(url: str, count: int, seed: int) -> Counter[str]:
    """So many streams, `AT_ONCE` at a time; what became of each, as its client saw it."""
    chance = random.Random(seed)
    seen: Counter[str] = Counter()
    gate = asyncio.Semaphore(AT_ONCE)
    plans = [
        (chance.choices(*zip(*WAYS, strict=True))[0], body_of(chance), random.Random(chance.random()))
        for _ in range(count)
    ]

    async def one(way: Way, body: dict[str, Any], own_chance: random.Random) -> None:
        async with gate:
            stream = RawStream(url, body)
            await stream.open()
            await way(stream, own_chance)
            seen["completed" if stream.completed else "failed" if stream.failed else "left"] += 1

    await asyncio.gather(*(one(*plan) for plan in plans))
    return seen


def body_of(chance: random.Random) -> dict[str, Any]:
    """A stream of up to 60 tokens; some with several choices, some with a stop string in the middle of a step."""
    body = XS | {"max_tokens": chance.randint(1, 60), "prompt": XS["prompt"] * chance.randint(1, 200)}
    match chance.randrange(6):
        case 0:
            return body | {"n": chance.randint(2, MOST_CHOICES)}
        case 1:
            return body | {"stop": ["x" * chance.randint(1, 30)]}
    return body


def resident(server: RunningServer) -> float:
    return server.metrics()["process_resident_memory_bytes"]


def assert_nothing_is_left(server: RunningServer) -> None:
    """No sequence, no block, no orphan, no open stream."""
    names = (
        "tailrace_sequences_running",
        "tailrace_sequences_waiting",
        "tailrace_kv_blocks_used",
        "tailrace_orphaned_requests",
        "tailrace_streams_open",
    )
    server.wait_for(dict.fromkeys(names, 0.0), 10)


def total(metrics: dict[str, float], name: str) -> float:
    """Over all labels."""
    return sum(value for key, value in metrics.items() if key == name or key.startswith(f"{name}{{"))


@pytest.mark.timeout(240)
async def test_chaos(server: RunningServer) -> None:
    """5,000 streams and a crash: nothing running, waiting, held or orphaned; the ledger adds up; memory comes back."""
    warm = await run_streams(server.url, WARM_UP, SEED)
    assert_nothing_is_left(server)
    before = resident(server)
    seen = warm + await run_streams(server.url, STREAMS, SEED + 1)
    assert_nothing_is_left(server)
    metrics = server.metrics()
    assert metrics["tailrace_engine_restarts_total"] == 1
    sent = WARM_UP + STREAMS
    assert total(metrics, "tailrace_streams_total") == sent == sum(seen.values())
    records = server.log_records(event="request")
    assert len(records) == len({record["request_id"] for record in records}) == sent
    ends = Counter(record["end_state"] for record in records)
    assert ends["completed"] >= seen["completed"]
    assert ends["upstream_error"] + ends["rejected"] >= seen["failed"] > 0
    assert ends["client_cancelled"] > sent / 4
    assert_the_ledger_adds_up(metrics, records)
    confirmed_in_time = metrics['tailrace_abort_seconds_bucket{le="0.01",reason="disconnect"}']
    assert confirmed_in_time > metrics['tailrace_abort_seconds_count{reason="disconnect"}'] / 2, "a step and 5 ms"
    poll_until(lambda: resident(server) <= before * 1.05, 10, lambda: f"{resident(server):g}, before {before:g}")


def assert_the_ledger_adds_up(metrics: dict[str, float], records: list[dict[str, Any]]) -> None:
    """What the engine counted is what the streams' accounts hold, token for token."""
    summed = {name: sum(record[f"{name}_tokens"] for record in records) for name in LEDGER}
    counted = {name: total(metrics, f"tailrace_tokens_{name}_total") for name in LEDGER}
    assert summed == counted
    assert counted["generated"] == counted["delivered"] + counted["undelivered"] + counted["cut"]
    for record in records:
        assert record["generated_tokens"] >= record["written_tokens"] >= record["delivered_tokens"] >= 0
        assert record["cut_tokens"] >= 0
        assert record["zombie_tokens"] <= MOST_CHOICES, "one step's tokens"
        if record["end_state"] == "completed":
            assert record["delivered_tokens"] == record["completion_tokens"]


LEDGER = ("generated", "written", "delivered", "undelivered", "cut", "zombie")
