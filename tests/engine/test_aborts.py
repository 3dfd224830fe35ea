"""Between an abort and the engine's word that it is done, every token is counted once, and to whom it belongs."""

from __future__ import annotations

import asyncio

import pytest

from engine.detokenizer import Vocabulary
from engine.stream import SequenceStream
from engine.types import AbortReason, FinishReason, StepOutputs, TextParams
from tests.engine.engines import running_core, scripted
from tests.engine.hand_driven_backend import hand_driven
from tests.vocabularies import vocabulary as vocabulary_named

pytestmark = pytest.mark.anyio
WORLD = 905
ZOMBIES = {reason: reason not in (AbortReason.STOP_STRING, AbortReason.CANCELLED) for reason in AbortReason}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return vocabulary_named("smollm2")


def settled_calls(stream: SequenceStream) -> list[int]:
    """Gets the stream's generated tokens at each call of its settling callback."""
    calls: list[int] = []
    stream.when_settled(lambda: calls.append(stream.generated_tokens))
    return calls


@pytest.mark.parametrize("reason", AbortReason)
async def test_late_tokens_are_counted_until_the_engine_confirms(vocabulary: Vocabulary, reason: AbortReason) -> None:
    """They are the stream's and the core's; zombies unless a stop string or a soft cancel had ended the sequence."""
    confirmed: list[tuple[AbortReason, float]] = []
    async with hand_driven(vocabulary) as (core, backend):
        core.on_freed = lambda *freed: confirmed.append(freed)
        async with core.open([scripted("r", [])], TextParams()) as stream:
            await backend.generate("r", 2)
            stream.abort_reason = reason
        calls = settled_calls(stream)
        await backend.generate("r", 3)
        assert (stream.generated_tokens, stream.late_tokens) == (5, 3)
        assert stream.zombie_tokens == core.zombie_tokens_total == (3 if ZOMBIES[reason] else 0)
        assert core.generated_tokens_total == 5
        assert (core.unsettled, core.orphaned_requests, calls, confirmed) == (1, 0, [], [])
        await backend.free("r")
        assert calls == [5]
        ((told, seconds),) = confirmed
        assert told is reason
        assert 0 <= seconds < 5
        await backend.free("r")
        assert (core.unsettled, len(calls), len(confirmed)) == (0, 1, 1)


async def test_a_sequence_that_ends_by_itself_needs_no_confirmation(vocabulary: Vocabulary) -> None:
    """A last output that crossed the abort settles it; what the backend says afterwards is nothing new."""
    async with hand_driven(vocabulary) as (core, backend):
        async with core.open([scripted("r", [])], TextParams()) as stream:
            pass
        calls = settled_calls(stream)
        await backend.generate("r", 1, FinishReason.LENGTH)
        assert calls == [1]
        await backend.free("r")
        assert (calls, core.unsettled) == ([1], 0)


async def test_a_stream_settles_with_its_last_sequence(vocabulary: Vocabulary) -> None:
    """Of three choices one ends, one meets a stop string, one is dropped: settled when the engine is rid of all."""
    async with hand_driven(vocabulary) as (core, backend):
        requests = [scripted(name, []) for name in ("ends", "stops", "dropped")]
        stream = core.open(requests, TextParams(stop=("world",)))
        assert settled_calls(stream) == [0]
        async with stream:
            calls = settled_calls(stream)
            await backend.generate("ends", 0, FinishReason.STOP)
            await backend.generate("stops", 1)
            assert backend.aborted == ["stops"]
            assert stream.generating
        assert backend.aborted == ["stops", "dropped"]
        await backend.free("dropped")
        await backend.generate("stops", 2)
        assert (stream.settled, stream.late_tokens, stream.zombie_tokens, calls) == (False, 2, 0, [])
        await backend.free("stops")
        assert calls == [3]
        assert settled_calls(stream) == [3]


async def test_a_fault_in_a_settling_callback_is_no_fault_of_the_engine(
    vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the engine and the other callbacks go on."""
    async with hand_driven(vocabulary) as (core, backend):
        async with core.open([scripted("r", [])], TextParams()) as stream:
            stream.when_settled(lambda: 1 / 0)  # type: ignore[arg-type]
            calls = settled_calls(stream)
        await backend.free("r")
        assert core.ready
    assert calls == [0]
    assert "ZeroDivisionError" in caplog.text


async def test_the_end_of_the_wait_is_told(vocabulary: Vocabulary) -> None:
    """A stream is scheduled with the first of its sequences; all that left the queue are counted."""
    async with hand_driven(vocabulary) as (core, backend):
        async with core.open([scripted("a", []), scripted("b", [])], TextParams()) as stream:
            before = stream.scheduled_at
            await backend.say(StepOutputs([], scheduled=["a"]))
            first = stream.scheduled_at
            assert before is None
            assert first is not None
            await backend.say(StepOutputs([], scheduled=["b"]))
            assert stream.scheduled_at == first
        assert core.scheduled_total == 2


async def test_the_simulated_engine_confirms_at_once(vocabulary: Vocabulary) -> None:
    """Also when it has nothing else to do and its next step is far away."""
    confirmed: list[float] = []
    async with running_core(vocabulary, step_interval_ms=5_000) as core:
        core.on_freed = lambda _, seconds: confirmed.append(seconds)
        async with core.open([scripted("r", [WORLD])], TextParams()) as stream:
            pass
        settled = asyncio.Event()
        stream.when_settled(settled.set)
        await asyncio.wait_for(settled.wait(), 4)
    assert len(confirmed) == 1
    assert confirmed[0] < 1
