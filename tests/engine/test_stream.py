"""A stream obeys whoever holds it, in every state: soft cancel, nudges, a bound on what waits; and tells its times."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from engine.detokenizer import Vocabulary
from engine.errors import EngineUnavailableError
from engine.output.events import OutputStep
from engine.stream import SequenceStream
from engine.types import AbortReason, FinishReason, SequenceOutput, StepOutputs, TextParams
from tests.engine.engines import scripted
from tests.engine.hand_driven_backend import hand_driven
from tests.vocabularies import vocabulary as vocabulary_named

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return vocabulary_named("smollm2")


def text_of(steps: list[OutputStep]) -> str:
    return "".join(step.text for step in steps)


def assert_cancelled(steps: list[OutputStep]) -> None:
    """An end that the client asked for is no failure."""
    for step in steps:
        assert step.finished is not None
        assert (step.finished.reason, step.finished.message) == (FinishReason.ABORT, None)
        assert step.finished.failure is None


async def test_cancelled_while_queued(vocabulary: Vocabulary) -> None:
    """Every choice ends without text, the engine is told once, and a second cancel changes nothing."""
    async with hand_driven(vocabulary) as (core, backend):
        async with core.open([scripted("a", []), scripted("b", [])], TextParams()) as stream:
            for _ in range(2):
                stream.cancel()
            steps = await stream.next_steps()
            assert len(steps) == 2
            assert_cancelled(steps)
            assert stream.finished
            assert not stream.generating
            assert not stream.settled
        assert backend.aborted == ["a", "b"]
        assert core.aborts_total == {AbortReason.CANCELLED: 2}


async def test_cancelled_in_mid_text(vocabulary: Vocabulary) -> None:
    """What a possible stop string held back comes with the end; ended choices keep their own end."""
    async with hand_driven(vocabulary) as (core, backend):
        stops = TextParams(stop=(" world world!",))
        async with core.open([scripted("a", []), scripted("b", [])], stops) as stream:
            await backend.generate("a", 2)
            await backend.generate("b", 1, FinishReason.LENGTH)
            stream.cancel()
            first, second = sorted(await stream.next_steps(), key=lambda step: step.index)
            assert_cancelled([first])
            assert text_of([first]) == " world world"
            assert second.finished is not None
            assert second.finished.reason is FinishReason.LENGTH
            await backend.generate("a", 1)
            await backend.free("a")
        assert (stream.generated_tokens, stream.late_tokens, stream.zombie_tokens) == (4, 1, 0)
        assert backend.aborted == ["a"]


async def test_cancelled_between_the_last_token_and_its_taking(vocabulary: Vocabulary) -> None:
    """The answer was complete, and stays so."""
    async with (
        hand_driven(vocabulary) as (core, backend),
        core.open([scripted("a", [])], TextParams()) as stream,
    ):
        await backend.generate("a", 1, FinishReason.STOP)
        stream.cancel()
        (step,) = await stream.next_steps()
        assert step.finished is not None
        assert step.finished.reason is FinishReason.STOP
        stream.cancel()
        assert stream.finished
        assert core.aborts_total == {}


async def test_cancelled_before_it_was_entered(vocabulary: Vocabulary) -> None:
    """Nothing is submitted, and the consumer finds the end."""
    async with hand_driven(vocabulary) as (core, backend):
        stream = core.open([scripted("a", [])], TextParams())
        stream.cancel()
        async with stream:
            assert backend.held == set()
            steps = await stream.next_steps()
            assert_cancelled(steps)
            assert stream.finished
        assert stream.settled


async def test_cancelled_after_it_was_left_or_lost(vocabulary: Vocabulary) -> None:
    """After the consumer has gone, after the engine's death and after the core's end, it does nothing."""
    async with hand_driven(vocabulary) as (core, backend):
        async with core.open([scripted("a", [])], TextParams()) as left:
            pass
        left.cancel()
        async with core.open([scripted("b", [])], TextParams()) as lost:
            await backend.say(EngineUnavailableError("gone"))
            lost.cancel()
            (step,) = await lost.next_steps()
            assert step.finished is not None
            assert step.finished.reason is FinishReason.ERROR
    left.cancel()
    lost.cancel()
    assert core.aborts_total == {AbortReason.DISCONNECT: 1, AbortReason.FAULT: 1}


async def test_abandoned_for_another_reason(vocabulary: Vocabulary) -> None:
    """A deadline ends it in the same way; what is still generated is for nobody."""
    async with (
        hand_driven(vocabulary) as (core, backend),
        core.open([scripted("a", [])], TextParams()) as stream,
    ):
        stream.abandon(AbortReason.DEADLINE)
        assert_cancelled(await stream.next_steps())
        await backend.generate("a", 1)
        assert stream.zombie_tokens == 1
        assert core.aborts_total == {AbortReason.DEADLINE: 1}


async def test_a_nudge_ends_one_wait(vocabulary: Vocabulary) -> None:
    """The one that waits, or else the next; mail comes first, and no nudge is left over."""
    async with (
        hand_driven(vocabulary) as (core, backend),
        core.open([scripted("a", [])], TextParams()) as stream,
    ):
        waiting = asyncio.ensure_future(stream.next_steps())
        await asyncio.sleep(0)
        assert not waiting.done()
        stream.nudge()
        assert await waiting == []
        stream.nudge()
        stream.nudge()
        assert await stream.next_steps() == []
        await backend.generate("a", 1)
        stream.nudge()
        assert text_of(await stream.next_steps()) == " world"
        waiting = asyncio.ensure_future(stream.next_steps())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        assert not stream.finished
        await backend.generate("a", 1, FinishReason.STOP)
        assert text_of(await waiting) == " world"


async def test_a_step_taken_on_the_spot_is_nobody_elses(vocabulary: Vocabulary) -> None:
    """Only while the consumer waits with no mail; what is not taken, and all after it, comes to it in order."""
    async with hand_driven(vocabulary) as (core, backend):
        async with core.open([scripted("a", [])], TextParams()) as stream:
            taken: list[OutputStep] = []
            takes = [True, True, False]

            def take(step: OutputStep) -> bool:
                taken.append(step)
                return takes.pop(0)

            stream.on_step = take
            core.take_step(StepOutputs([SequenceOutput("a", [19556])]))  # nobody waits yet
            assert taken == []
            assert text_of(await stream.next_steps()) == "Hello"
            waiting = asyncio.create_task(stream.next_steps())
            await asyncio.sleep(0)
            for _ in range(4):
                core.take_step(StepOutputs([SequenceOutput("a", [905])]))
            assert len(taken) == 3
            assert text_of(taken[:2]) == " world world"
            assert text_of(await waiting) == " world world"
        assert backend is core.backend


async def test_a_nudge_does_not_hide_the_end(vocabulary: Vocabulary) -> None:
    """A finished stream is finished, nudged or not."""
    async with (
        hand_driven(vocabulary) as (core, backend),
        core.open([scripted("a", [])], TextParams()) as stream,
    ):
        await backend.generate("a", 1, FinishReason.STOP)
        stream.nudge()
        seen = [steps async for steps in stream]
        assert len(seen) == 1


@pytest.mark.parametrize("taken", [False, True])
async def test_what_waits_for_a_reader_is_bounded(vocabulary: Vocabulary, taken: bool) -> None:
    """Over the bound the generation ends, once, and the reader is told; one that takes its steps is never over it."""
    async with (
        hand_driven(vocabulary) as (core, backend),
        core.open([scripted("a", [])], TextParams()) as stream,
    ):
        stream.max_buffered_bytes = 100
        for _ in range(30):
            await backend.generate("a", 1)
            if taken:
                await stream.next_steps()
        assert stream.overflowed is not taken
        assert core.aborts_total == ({} if taken else {AbortReason.DEADLINE: 1})
        if not taken:
            steps = await stream.next_steps()
            (end,) = [step.finished for step in steps if step.finished is not None]
            assert isinstance(end.failure, EngineUnavailableError)
            assert 100 < len(text_of(steps)) < 120


async def test_gaps_are_between_the_tokens_of_a_sequence(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a first token, nor an empty output, nor what comes after the end has one; two choices do not mix."""
    clock = iter([1.0, 2.0, 2.5, 4.0, 5.0, 6.0, 7.0, 8.0])
    async with (
        hand_driven(vocabulary) as (core, backend),
        core.open([scripted("a", []), scripted("b", [])], TextParams()) as stream,
    ):
        with monkeypatch.context() as patched:
            patched.setattr("engine.core.time", SimpleNamespace(monotonic=lambda: next(clock)))
            await backend.generate("a", 2)  # 1.0: its first
            await backend.generate("b", 1)  # 2.0: its first
            await backend.say(StepOutputs([SequenceOutput("a", [])]))  # 2.5: nothing
            await backend.generate("a", 3)  # 4.0: three after three seconds
            await backend.generate("b", 1, FinishReason.LENGTH)  # 5.0: one after three seconds
        assert (stream.gaps.tokens, stream.gaps.seconds, stream.gaps.longest) == (4, 6.0, 3.0)
        assert (stream.first_token_at, stream.last_token_at) == (1.0, 5.0)
        stream.cancel()
        await backend.generate("a", 1)
        assert (stream.gaps.tokens, stream.last_token_at) == (4, 5.0)


async def test_the_stream_knows_its_consumer(vocabulary: Vocabulary) -> None:
    """The task that entered it, and nobody before."""
    async with hand_driven(vocabulary) as (core, _):
        stream: SequenceStream = core.open([scripted("a", [])], TextParams())
        assert stream.consumer is None
        async with stream:
            assert stream.consumer is asyncio.current_task()
            assert not stream.unattended
