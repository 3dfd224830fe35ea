"""The transformers backend when things go wrong: no room, a failing step, a stop in mid-generation."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.backends.transformers import TransformersBackend
from engine.backends.transformers import backend as backend_module
from engine.backends.transformers.continuous import SequenceState
from engine.backends.transformers.run import SchedulerTotals
from engine.backends.transformers.scheduler import SequenceScheduler
from engine.backends.transformers.sequence import Sequence
from engine.config import EngineConfig
from engine.errors import ContextLengthError, EngineUnavailableError, ModelLoadError
from engine.types import EngineRequest, FinishReason
from tests.engine.backends.transformers_runs import answer, collect, is_empty, request, run, until

pytestmark = pytest.mark.real_model

PROMPT = list(range(1000, 1040))


@asynccontextmanager
async def started(folder: Path, **settings: Any) -> AsyncIterator[TransformersBackend]:
    backend = TransformersBackend(EngineConfig(**settings), folder)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


async def test_a_full_cache_preempts_and_goes_on(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences that do not fit together take turns.

    All finish, greedy ones and seeded ones, with the tokens that they have alone, each reported once. Afterwards
    the engine still admits others, also when all were aborted.
    """
    preempted: list[SequenceState] = []
    again = SequenceState.create_equivalent_initial_request

    def noted(state: SequenceState) -> SequenceState:
        preempted.append(state)
        return again(state)

    monkeypatch.setattr(SequenceState, "create_equivalent_initial_request", noted)
    async with started(demo_model, num_kv_blocks=8, block_size=16, max_num_seqs=8, max_model_len=128) as backend:
        prompts = [[number, *PROMPT] for number in range(500, 503)]
        kinds: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 4, "repetition_penalty": 1.2}, {"logprobs": 1}]

        def crowd() -> list[EngineRequest]:
            return [request(prompt, 32, ignore_eos=True, **kind) for prompt, kind in zip(prompts, kinds, strict=True)]

        alone = [(await run(backend, one))[0] for one in crowd()]
        assert not preempted
        together = await run(backend, *crowd())
        assert preempted
        assert [one.token_ids for one in together] == [one.token_ids for one in alone]
        assert [len(one.logprobs) for one in together] == [0, 0, 32]
        await until(backend, is_empty)

        dropped, seen = crowd(), len(preempted)
        for one in dropped:
            backend.submit(one)
        while len(preempted) == seen:
            await collect_some(backend, 1)
        backend.abort([one.request_id for one in dropped])
        assert len((await answer(backend, PROMPT, 4, ignore_eos=True)).token_ids) == 4


async def test_what_can_never_fit_is_refused(demo_model: Path) -> None:
    """Prompt and output within the context but over the whole KV cache would stall the engine."""
    async with started(demo_model, num_kv_blocks=8, block_size=16, max_model_len=1024) as backend:
        with pytest.raises(ContextLengthError):
            backend.check(request([5] * 100, 29))
        backend.check(request([5] * 100, 28))


async def collect_some(backend: TransformersBackend, tokens: int) -> None:
    """Waits until so many tokens are out, of whatever sequence."""
    while tokens > 0:
        step = await asyncio.wait_for(backend.next_step(), 60)
        tokens -= sum(len(output.token_ids) for output in step.outputs)


async def test_failures_reach_those_they_concern(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence whose sampling fails ends alone; a step that fails ends all, and then the engine is down."""
    async with started(demo_model, num_kv_blocks=40, max_num_seqs=4, max_model_len=1024) as backend:
        adjust = Sequence.adjust

        def fail(one: Sequence, row: Any) -> None:
            if one.request.sampling.logit_bias:
                raise ArithmeticError("made up")
            adjust(one, row)

        monkeypatch.setattr(Sequence, "adjust", fail)
        good, bad = request(PROMPT, 4, ignore_eos=True, logprobs=0), request(PROMPT, 4, logit_bias={5: 1.0})
        kept, failed = await run(backend, good, bad)
        assert (kept.finish_reason, len(kept.token_ids)) == (FinishReason.LENGTH, 4)
        assert (failed.finish_reason, failed.token_ids) == (FinishReason.ERROR, [])
        assert failed.error is not None
        assert "made up" in failed.error
        await until(backend, is_empty)

        manager = backend._manager
        assert manager is not None
        monkeypatch.setattr(manager.model, "forward", None)
        answers = await run(backend, *(request(PROMPT, 4) for _ in range(6)))
        assert {one.finish_reason for one in answers} == {FinishReason.ERROR}
        assert all(one.error and "the engine failed" in one.error for one in answers)
        for _ in range(2):
            with pytest.raises(EngineUnavailableError, match="the engine failed"):
                await asyncio.wait_for(backend.next_step(), 60)
        with pytest.raises(EngineUnavailableError):
            backend.submit(request(PROMPT))
        assert is_empty(backend.stats())
        assert backend._live == {}


async def test_close_in_mid_generation(demo_model: Path) -> None:
    """Running and waiting sequences end with an error, the thread is over, and the model's memory is given back."""
    backend = TransformersBackend(EngineConfig(num_kv_blocks=40, max_num_seqs=2, max_model_len=1024), demo_model)
    await backend.start()
    assert backend._manager is not None
    model = weakref.ref(backend._manager.model)
    requests = [request(PROMPT, 300, ignore_eos=True) for _ in range(4)]
    for one in requests:
        backend.submit(one)
    await collect_some(backend, 1)
    begin = asyncio.get_running_loop().time()
    await backend.close()
    await backend.close()
    assert asyncio.get_running_loop().time() - begin < 10
    answers = await collect(backend, [one.request_id for one in requests])
    assert {(one.finish_reason, one.error) for one in answers} == {(FinishReason.ERROR, "the engine was stopped")}
    with pytest.raises(EngineUnavailableError, match="stopped"):
        await asyncio.wait_for(backend.next_step(), 60)
    assert "tailrace-engine" not in {thread.name for thread in threading.enumerate()}
    gc.collect()
    assert model() is None


async def test_a_thread_that_hangs_is_left_behind(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits for it for a bounded time, a fresh engine starts beside it, and its late words reach nobody."""
    monkeypatch.setattr(backend_module, "CLOSE_TIMEOUT", 0.2)
    async with started(demo_model, num_kv_blocks=40, max_num_seqs=2, max_model_len=1024) as backend:
        expected = await answer(backend, PROMPT, 4, ignore_eos=True)
        assert backend._manager is not None
        thread, model = backend._manager._generation_thread, backend._manager.model
        hangs, goes_on, forward = threading.Event(), threading.Event(), model.forward

        def hang(*args: Any, **kwargs: Any) -> Any:
            hangs.set()
            assert goes_on.wait(60)
            return forward(*args, **kwargs)

        monkeypatch.setattr(model, "forward", hang)
        lost = request(PROMPT, 400, ignore_eos=True)
        backend.submit(lost)
        assert await asyncio.to_thread(hangs.wait, 60)
        begin = asyncio.get_running_loop().time()
        await backend.close()
        assert asyncio.get_running_loop().time() - begin < 5
        assert is_empty(backend.stats())
        await backend.start()
        backend.submit(lost)  # the same id, in another life
        goes_on.set()
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()
        backend.abort([lost.request_id])
        await until(backend, is_empty)
        assert (await answer(backend, PROMPT, 4, ignore_eos=True)).token_ids == expected.token_ids


def test_a_cancel_that_overtakes_its_submission_is_kept() -> None:
    """It waits for the sequence instead of being forgotten; a cancel of one that has ended is done at once."""
    heard: list[str] = []

    class Listener:
        def stepped(self, outputs: Any, scheduled: Any = (), freed: Any = ()) -> None:
            heard.extend(freed)

        def exited(self, reason: str) -> None:
            """Nobody asks."""

    cache = SimpleNamespace(free_blocks=lambda _: None)
    scheduler = SequenceScheduler(cache, 0.0, 4)
    scheduler.attach(Listener(), SchedulerTotals())
    states = [SimpleNamespace(request_id=str(key)) for key in (1, 2, 3)]
    scheduler.add_waiting_request(states[0])
    scheduler.add_waiting_request(states[1])
    del scheduler.waiting_requests["1"]  # has ended
    for key in ("1", "3"):
        scheduler.set_request_cancellation(key)
    assert scheduler.clear_cancelled_requests() == []
    assert heard == ["1"]
    scheduler.add_waiting_request(states[2])
    assert scheduler.clear_cancelled_requests() == [states[2]]
    assert heard == ["1", "3"]
    assert list(scheduler.waiting_requests) == ["2"]


async def test_a_close_while_loading_is_kept(demo_model: Path) -> None:
    """The model that arrives too late is thrown away."""
    backend = TransformersBackend(EngineConfig(num_kv_blocks=40, max_model_len=1024), demo_model)
    starting = asyncio.ensure_future(backend.start())
    await asyncio.sleep(0)
    await backend.close()
    await asyncio.wait_for(starting, 60)
    with pytest.raises(EngineUnavailableError):
        backend.submit(request(PROMPT))


async def test_a_folder_without_weights_is_a_clear_error(tmp_path: Path, demo_model: Path) -> None:
    """The message names the folder."""
    (tmp_path / "config.json").write_text((demo_model / "config.json").read_text())
    backend = TransformersBackend(EngineConfig(), tmp_path)
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        await backend.start()
