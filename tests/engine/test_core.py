"""The core: every stream gets its own sequences' steps, and nothing of a sequence outlives its consumer."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from engine.core import EngineCore
from engine.detokenizer import Vocabulary
from engine.errors import EngineUnavailableError
from engine.types import AbortReason, FinishReason, TextParams
from tests.engine.engines import fold, running_core, scripted, simulated_backend

HELLO, WORLD = 19556, 905


@pytest.fixture(scope="module")
def vocabulary(demo_model: Path) -> Vocabulary:
    return Vocabulary.from_tokenizer_file(demo_model / "tokenizer.json")


def assert_nothing_left(core: EngineCore) -> None:
    stats = core.stats()
    assert core.live_sequences == 0
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)


@pytest.mark.anyio
async def test_each_choice_gets_its_own_tokens(vocabulary: Vocabulary) -> None:
    """The n sequences of one stream come apart by index, and the stream ends when all have."""
    async with running_core(vocabulary) as core:
        requests = [scripted(f"r-{index}", [HELLO] * (index + 1)) for index in range(5)]
        result = await fold(core.open(requests, TextParams()))
        assert [choice.text for choice in result.choices] == ["Hello" * (index + 1) for index in range(5)]
        assert_nothing_left(core)


@pytest.mark.anyio
async def test_what_nobody_takes_is_one_merged_step(vocabulary: Vocabulary) -> None:
    """A consumer that is away finds one step with all the text, whatever the engine's steps were."""
    async with (
        running_core(vocabulary) as core,
        core.open([scripted("r", [HELLO, WORLD] * 50)], TextParams()) as stream,
    ):
        await core.wait_idle()
        steps = await stream.next_steps()
        assert [step.text for step in steps if step.text] == ["Hello world" * 50]
        assert steps[0].finished is not None
        assert steps[0].released_tokens == 100
        assert stream.finished


@pytest.mark.anyio
@pytest.mark.parametrize("taken", [0, 1, 3])
async def test_leaving_early_aborts(vocabulary: Vocabulary, taken: int) -> None:
    """Whenever the consumer leaves, the engine has nothing of it afterwards; leaving counts as an abort once."""
    async with running_core(vocabulary) as core:
        async with core.open([scripted("r", [HELLO] * 500)], TextParams()) as stream:
            for _ in range(taken):
                await stream.next_steps()
        assert_nothing_left(core)
        assert core.aborts_total == {AbortReason.DISCONNECT: 1}


@pytest.mark.anyio
async def test_an_unentered_stream_costs_nothing(vocabulary: Vocabulary) -> None:
    """Opening submits nothing; only entering does."""
    async with running_core(vocabulary) as core:
        core.open([scripted("r", [HELLO])], TextParams())
        assert_nothing_left(core)


@pytest.mark.anyio
async def test_a_stop_string_aborts_the_engine_and_completes_the_answer(vocabulary: Vocabulary) -> None:
    """The sequence ends with STOP and its match; the engine's sequence is gone with the same step."""
    async with running_core(vocabulary) as core:
        result = await fold(core.open([scripted("r", [HELLO, WORLD] * 100)], TextParams(stop=("o w",))))
        finished = result.choices[0].finished
        assert finished is not None
        assert (result.choices[0].text, finished.reason, finished.stop) == ("Hell", FinishReason.STOP, "o w")
        assert core.aborts_total == {AbortReason.STOP_STRING: 1}
        assert_nothing_left(core)


@pytest.mark.anyio
async def test_all_or_none_of_a_streams_sequences_are_submitted(vocabulary: Vocabulary) -> None:
    """When the backend refuses one sequence, those submitted before it are aborted."""
    backend = simulated_backend()
    core = EngineCore(backend, vocabulary)
    await core.start()
    submit = backend.submit

    def refuse_second(request: object) -> None:
        if getattr(request, "request_id", "") == "r-1":
            raise EngineUnavailableError("no")
        submit(request)  # type: ignore[arg-type]

    backend.submit = refuse_second  # type: ignore[method-assign]
    with pytest.raises(EngineUnavailableError):
        await fold(core.open([scripted("r-0", [HELLO]), scripted("r-1", [HELLO])], TextParams()))
    assert_nothing_left(core)
    await core.close()


@pytest.mark.anyio
async def test_closing_ends_streams_that_are_open(vocabulary: Vocabulary) -> None:
    """A consumer of a closed core hears why, instead of waiting for ever."""
    async with running_core(vocabulary, step_interval_ms=5) as core:
        stream = core.open([scripted("r", [HELLO] * 10_000)], TextParams())
        async with stream:
            await stream.next_steps()
            await core.close()
            last = await stream.next_steps()
    finished = last[-1].finished
    assert finished is not None
    assert "shutting down" in str(finished.failure)


@pytest.mark.anyio
async def test_many_streams_dropped_at_random_leave_nothing(vocabulary: Vocabulary) -> None:
    """500 streams, half of them left after a random number of steps: no sequence, no block, and all tokens add up."""
    draw = random.Random(7)

    async def one(core: EngineCore, number: int) -> int:
        steps = draw.choice([0, 1, 2, 5, 10_000])
        async with core.open([scripted(f"r-{number}", [HELLO] * 20)], TextParams()) as stream:
            while steps and not stream.finished:
                steps -= 1
                await stream.next_steps()
        return stream.generated_tokens

    async with running_core(vocabulary, max_num_seqs=32, num_kv_blocks=64, block_size=4) as core:
        counts = await asyncio.gather(*(one(core, number) for number in range(500)))
        assert_nothing_left(core)
        assert sum(counts) + core.zombie_tokens_total == core.generated_tokens_total


@pytest.mark.anyio
async def test_a_fault_in_one_answers_text_ends_that_answer_alone(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence whose output can't be processed ends with an error; its neighbours and the engine go on."""
    async with running_core(vocabulary) as core:
        broken = core.open([scripted("broken", [HELLO] * 10)], TextParams())
        healthy = core.open([scripted("healthy", [HELLO] * 10)], TextParams())
        monkeypatch.setattr(broken.processors[0], "_decoding", None)
        results = await asyncio.gather(fold(broken), fold(healthy))
        ends = [result.choices[0].finished for result in results]
        assert [end.reason for end in ends if end] == [FinishReason.ERROR, FinishReason.STOP]
        assert results[1].choices[0].text == "Hello" * 10
        assert core.ready
        assert_nothing_left(core)


@pytest.mark.anyio
async def test_held_text_does_not_move_the_first_tokens_time(vocabulary: Vocabulary) -> None:
    """The first token's time is the step that sampled it, also while a possible stop string holds back all text."""
    async with running_core(vocabulary, step_interval_ms=2) as core:
        before = time.monotonic()
        stops = TextParams(stop=("Hello" * 30 + "!",))
        async with core.open([scripted("r", [HELLO] * 20)], stops) as stream:
            steps = await stream.next_steps()
        assert [step.text for step in steps if step.text] == ["Hello" * 20]
        assert stream.first_token_at is not None
        assert stream.last_token_at is not None
        assert before < stream.first_token_at < stream.last_token_at - 15 * 0.002
