"""What nobody waits for is found and ended, and nothing else is."""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import replace

import pytest

from engine import reaper
from engine.detokenizer import Vocabulary
from engine.stream import SequenceStream
from engine.types import AbortReason, StepOutputs, TextParams
from tests.engine.engines import QUICK, running_core, scripted, until
from tests.engine.hand_driven_backend import hand_driven
from tests.vocabularies import vocabulary as vocabulary_named

pytestmark = pytest.mark.anyio
EAGER = replace(QUICK, stall_timeout=60, reap_interval=0.02)
HELLO = 19556


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return vocabulary_named("smollm2")


async def enter(stream: SequenceStream) -> None:
    """As a handler that loses its way would: entered, and never left."""
    await stream.__aenter__()


async def settled(stream: SequenceStream) -> None:
    event = asyncio.Event()
    stream.when_settled(event.set)
    await asyncio.wait_for(event.wait(), 10)


async def test_a_stream_that_lost_its_consumer_is_reaped(
    vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture
) -> None:
    """Its sequences are orphans from the end of the task that entered it until the reaper comes, and then nothing."""
    async with running_core(vocabulary, EAGER, step_interval_ms=1) as core:
        lost = core.open([scripted(f"lost-{index}", [HELLO] * 4_000) for index in range(2)], TextParams())
        async with core.open([scripted("kept", [HELLO] * 50)], TextParams()) as kept:
            await asyncio.create_task(enter(lost))
            assert core.orphaned_requests == 2
            await settled(lost)
            assert core.orphaned_requests == 0
            async for _ in kept:
                pass
        assert core.reaped_total == 2
        assert core.aborts_total == {AbortReason.DISCONNECT: 2}
        assert core.stats().kv_blocks_used == 0
    assert sum("has no consumer" in record.message for record in caplog.records) == 2


async def test_a_consumer_that_was_collected_is_gone(vocabulary: Vocabulary) -> None:
    """The stream keeps no task alive; one that no longer exists consumes nothing."""
    async with hand_driven(vocabulary, EAGER) as (core, backend):
        lost = core.open([scripted("r", [])], TextParams())
        await asyncio.create_task(enter(lost))
        await asyncio.sleep(0)  # the loop forgets the task with its next turn
        gc.collect()
        assert lost.consumer is None
        assert core.orphaned_requests == 1
        await until(lambda: bool(backend.aborted))
        assert (core.orphaned_requests, core.reaped_total) == (0, 1)


async def test_a_stream_that_was_taken_over_is_no_orphan(vocabulary: Vocabulary) -> None:
    """The task that takes it over is its consumer, whatever becomes of the one that entered."""
    async with hand_driven(vocabulary, EAGER) as (core, _):
        stream = core.open([scripted("r", [])], TextParams())
        entering = asyncio.create_task(enter(stream))
        stays = asyncio.create_task(asyncio.Event().wait())
        await entering
        stream.consumer = stays
        assert core.orphaned_requests == 0
        stays.cancel()
        await asyncio.gather(stays, return_exceptions=True)
        assert core.orphaned_requests == 1


async def test_what_the_engine_holds_for_nobody_is_aborted(vocabulary: Vocabulary) -> None:
    """A sequence that the core knows nothing of, live ones and unconfirmed aborts left alone."""
    async with (
        hand_driven(vocabulary, EAGER) as (core, backend),
        core.open([scripted("live", [])], TextParams()),
    ):
        async with core.open([scripted("aborted", [])], TextParams()):
            pass
        backend.held.add("leaked")
        assert core.orphaned_requests == 1
        await until(lambda: backend.aborted[:2] == ["aborted", "leaked"])
        await backend.free("leaked")
        assert core.orphaned_requests == 0
        assert core.unsettled == 1


async def test_an_abort_without_a_word_is_sent_again(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the engine holds it; when it does not, the word was lost and the stream is settled."""
    monkeypatch.setattr(reaper, "ABORT_CONFIRM_SECONDS", 0.05)
    async with hand_driven(vocabulary, EAGER) as (core, backend):
        async with core.open([scripted("deaf", []), scripted("mute", [])], TextParams()) as stream:
            begin = time.monotonic()
        await until(lambda: backend.aborted.count("deaf") == 3)
        assert time.monotonic() - begin >= 0.1
        assert core.reaped_total == 0
        backend.held.clear()
        await settled(stream)
        assert core.unsettled == 0
        assert core.ready


async def test_a_late_confirmation_is_no_orphan(vocabulary: Vocabulary) -> None:
    """However long the engine takes, an aborted sequence has an owner: the ledger of aborts."""
    async with hand_driven(vocabulary, EAGER) as (core, backend):
        async with core.open([scripted("r", [])], TextParams()):
            await backend.say(StepOutputs([], scheduled=["r"]))
        assert backend.held == {"r"}
        assert core.orphaned_requests == 0
        await backend.free("r")
        assert core.orphaned_requests == 0
