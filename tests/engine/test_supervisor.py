"""An engine that dies or hangs is started again, however often that fails, and no stream waits for it."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import pytest

from engine.core import EngineCore
from engine.detokenizer import Vocabulary
from engine.errors import EngineUnavailableError
from engine.output.events import Finished
from engine.output.result import AnswerResult
from engine.supervisor import SupervisionConfig
from engine.types import FinishReason, StepOutputs, TextParams
from tests.engine.engines import QUICK, fold, running_core, scripted, until
from tests.engine.hand_driven_backend import HandDrivenBackend
from tests.vocabularies import vocabulary as vocabulary_named

pytestmark = pytest.mark.anyio
HELLO = 19556
DEATH = RuntimeError("made up")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return vocabulary_named("smollm2")


def end_of(result: AnswerResult) -> Finished:
    (choice,) = result.choices
    assert choice.finished is not None
    return choice.finished


@pytest.mark.parametrize("fault", ["crash_after_steps", "stall_after_steps"])
async def test_a_dead_engine_ends_every_stream_and_comes_back(vocabulary: Vocabulary, fault: str) -> None:
    """Each stream ends with an error, new ones are refused with the time to come back, and then all is well again."""
    slow = SupervisionConfig(backoff=0.2, stall_timeout=0.1)
    async with running_core(vocabulary, slow, faults={fault: 3}) as core:
        requests = [scripted(f"r-{index}", [HELLO] * 100) for index in range(4)]
        streams = [core.open([request], TextParams()) for request in requests]
        ends = [end_of(result) for result in await asyncio.gather(*map(fold, streams))]
        assert {end.reason for end in ends} == {FinishReason.ERROR}
        told = "simulated crash" if fault == "crash_after_steps" else "made no step for 0.1 seconds"
        assert all(told in str(end.failure) for end in ends)
        assert all(stream.settled for stream in streams)
        assert not core.ready
        assert told in str(core.failure)
        with pytest.raises(EngineUnavailableError, match=told) as refused:
            await fold(core.open([scripted("late", [HELLO])], TextParams()))
        assert 0 < refused.value.retry_after <= 0.2
        assert (core.live_sequences, core.unsettled) == (0, 0)

        await until(lambda: core.ready)
        assert (core.failure, core.restarts_total) == (None, 1)
        assert end_of(await fold(core.open([scripted("again", [HELLO] * 9)], TextParams()))).reason is FinishReason.STOP
        stats = core.stats()
        assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)


async def test_starts_that_fail_are_tried_again_ever_later(
    vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture
) -> None:
    """The pauses double up to the longest, each failure is logged once, and the last success ends it."""
    backend = HandDrivenBackend()
    core = EngineCore(backend, vocabulary, SupervisionConfig(backoff=0.05, backoff_max=0.15))
    await core.start()
    backend.failing_starts = 4
    with caplog.at_level(logging.ERROR, logger="engine.supervisor"):
        died_at = asyncio.get_running_loop().time()
        await backend.say(DEATH)
        assert "made up" in str(core.failure)
        await until(lambda: core.failure == "the engine could not be started again: no start")
        assert len(backend.starts) == 2
        await until(lambda: core.ready)
    assert core.failure is None
    pauses = [later - earlier for earlier, later in pairwise([died_at, *backend.starts[1:]])]
    assert len(pauses) == 5
    for pause, least in zip(pauses, [0.05, 0.1, 0.15, 0.15, 0.15], strict=True):
        assert pause >= least - 0.001
    failures = [record for record in caplog.records if "could not be started" in record.message]
    assert len(failures) == 4
    assert backend.closes == 5
    await core.close()


async def test_an_engine_that_lived_long_starts_over_with_the_shortest_pause(vocabulary: Vocabulary) -> None:
    """Back-off is for an engine that dies again and again, not for one that dies once a week."""
    backend = HandDrivenBackend()
    core = EngineCore(backend, vocabulary, SupervisionConfig(backoff=0.02, backoff_max=0.3))
    await core.start()
    for restarts in range(1, 4):
        await backend.say(DEATH)
        await until(lambda restarts=restarts: core.restarts_total == restarts)  # type: ignore[misc]
    lived_until = asyncio.get_running_loop().time() + 0.35
    await until(lambda: asyncio.get_running_loop().time() > lived_until)
    await backend.say(DEATH)
    assert core.retry_after <= 0.02
    await core.close()


async def test_the_first_start_is_not_retried(vocabulary: Vocabulary) -> None:
    """A server that can't come up says so at once."""
    backend = HandDrivenBackend()
    backend.failing_starts = 1
    core = EngineCore(backend, vocabulary)
    with pytest.raises(EngineUnavailableError, match="no start"):
        await core.start()
    assert not core.ready
    await core.close()


async def test_an_engine_that_does_not_close_is_left_to_itself(vocabulary: Vocabulary) -> None:
    """Neither the restart nor the core's own end waits for it."""
    backend = HandDrivenBackend()
    backend.hangs_on_close = True
    core = EngineCore(backend, vocabulary, QUICK)
    await core.start()
    await backend.say(DEATH)
    await until(lambda: core.restarts_total == 1)
    assert core.ready
    async with asyncio.timeout(5):
        await core.close()


@pytest.mark.parametrize("starts_fail", [False, True])
async def test_the_core_can_be_closed_while_the_engine_is_down(vocabulary: Vocabulary, starts_fail: bool) -> None:
    """In the pause and between failing starts, closing ends the supervision."""
    backend = HandDrivenBackend()
    core = EngineCore(backend, vocabulary, QUICK if starts_fail else SupervisionConfig())
    await core.start()
    backend.failing_starts = 1_000 if starts_fail else 0
    await backend.say(DEATH)
    if starts_fail:
        await until(lambda: len(backend.starts) > 2)
    await core.close()
    assert not core.ready


async def test_only_an_engine_that_owes_a_step_can_stall(vocabulary: Vocabulary) -> None:
    """Neither silence without work nor steps without outputs are a stall; work after a silence has all its time."""
    backend = HandDrivenBackend()
    core = EngineCore(backend, vocabulary, SupervisionConfig(stall_timeout=0.4))
    await core.start()
    loop = asyncio.get_running_loop()
    silent_until = loop.time() + 0.6
    await until(lambda: loop.time() > silent_until)
    assert core.ready
    async with core.open([scripted("r", [])], TextParams()) as stream:
        prefilling_until = loop.time() + 0.8
        while loop.time() < prefilling_until:
            await backend.say(StepOutputs([]))
            await asyncio.sleep(0.01)
        assert core.ready
        last_step_at = loop.time()
        steps = await stream.next_steps()
        assert 0.4 <= loop.time() - last_step_at < 1.5
    assert steps[0].finished is not None
    assert "made no step for 0.4 seconds" in str(steps[0].finished.failure)
    await core.close()


async def test_an_unconfirmed_abort_is_work(vocabulary: Vocabulary) -> None:
    """An engine that hangs when its last stream has gone is noticed as well, and the stream is settled then."""
    backend = HandDrivenBackend()
    core = EngineCore(backend, vocabulary, QUICK)
    await core.start()
    async with core.open([scripted("r", [])], TextParams()) as stream:
        pass
    assert not stream.settled
    await until(lambda: stream.settled)
    assert core.unsettled == 0
    await until(lambda: core.restarts_total == 1)
    await core.close()
