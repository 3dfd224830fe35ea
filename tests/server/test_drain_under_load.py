"""SIGTERM while hundreds of streams run: each that was accepted gets a terminal event, later ones get a 503."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running_server import RunningServer, simulated
from tests.server.raw_stream import XS, RawStream

DRAIN_SECONDS = 2.0
RUNNING = 300
LATER = 100


@pytest.fixture
def server(demo_model: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """Some of what runs ends within the bound, some does not, some is still queued."""
    settings = (
        "engine.step_interval_ms=10",
        "engine.max_num_seqs=200",
        f"server.drain_timeout_seconds={DRAIN_SECONDS}",
    )
    flags = simulated(demo_model, *settings)
    with RunningServer(*flags, log_folder=tmp_path) as running:
        yield running


async def answer(url: str, body: dict[str, object]) -> RawStream | None:
    """The whole answer; None where nobody listens any more."""
    stream = RawStream(url, body)
    try:
        await stream.open()
    except ConnectionRefusedError:
        return None
    await stream.read_to_end()
    stream.close()
    return stream


def submitted(server: RunningServer) -> float:
    """Requests that the engine has or had."""
    samples = server.metrics()
    ended = sum(value for name, value in samples.items() if name.startswith("tailrace_streams_total{"))
    return ended + samples["tailrace_sequences_running"] + samples["tailrace_sequences_waiting"]


@pytest.mark.timeout(60)
async def test_sigterm_under_load(server: RunningServer) -> None:
    """No accepted stream ends without a terminal event; new ones get 503 and when to come back; it exits in time."""
    chance = random.Random(3)
    bodies = [XS | {"max_tokens": chance.choice((20, 100, 8_000))} for _ in range(RUNNING)]
    streams = [asyncio.ensure_future(answer(server.url, body)) for body in bodies]
    while await asyncio.to_thread(submitted, server) < RUNNING:
        pass
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    while (await asyncio.to_thread(server.get, "/ready")).status_code == 200:
        assert time.monotonic() < began + DRAIN_SECONDS
    later = await asyncio.gather(*(answer(server.url, XS) for _ in range(LATER)))
    accepted = await asyncio.gather(*streams)
    assert await asyncio.to_thread(server.process.wait, 10) == 0
    assert time.monotonic() - began < DRAIN_SECONDS + 5
    ends: Counter[str] = Counter()
    for stream in accepted:
        assert stream is not None
        assert stream.completed != stream.failed, bytes(stream.received[-300:])
        ends["completed" if stream.completed else "failed"] += 1
    assert min(ends["completed"], ends["failed"]) >= RUNNING / 10
    refused = [stream for stream in later if stream is not None]
    assert refused
    assert all(stream.status == 503 and b"\r\nretry-after: " in stream.received for stream in refused)
    states = Counter(record["end_state"] for record in server.log_records(event="request"))
    assert states == {"completed": ends["completed"], "upstream_error": ends["failed"], "rejected": len(refused)}
