"""The contract of every backend (`engine.backends.base.Backend`), one suite over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from engine.backends.base import Backend
from engine.backends.transformers import TransformersBackend
from engine.config import EngineConfig
from engine.errors import EngineUnavailableError, UnsupportedParameterError
from engine.types import EngineRequest, FinishReason, SamplingParams, Simulation
from tests.engine.backends.contract_steps import PROMPT, outputs_of, request, steps_until, until_ended, until_free
from tests.engine.backends.vllm_engines import VLLM_MARKS, SharedEngine
from tests.engine.engines import simulated_backend

pytestmark = pytest.mark.anyio
REAL_KINDS = [
    pytest.param("transformers", marks=pytest.mark.real_model),
    pytest.param("vllm", marks=VLLM_MARKS),
]
KINDS = ["simulated", *REAL_KINDS]
Started = Callable[..., AbstractAsyncContextManager[Backend]]
"""Takes the engine's settings."""


@pytest.fixture(scope="module")
async def shared_vllm(demo_model: Path) -> AsyncIterator[SharedEngine]:
    shared = SharedEngine(demo_model)
    yield shared
    await shared.close()


@pytest.fixture
def started(request: pytest.FixtureRequest, kind: str, demo_model: Path) -> Started:
    """Gives a started backend of that kind, for the time of a `with`."""
    if kind == "vllm":
        shared: SharedEngine = request.getfixturevalue("shared_vllm")
        return shared.started
    if kind == "simulated":
        return lambda **settings: opened(simulated_backend(**settings))
    return lambda **settings: opened(TransformersBackend(EngineConfig(**settings), demo_model))


@asynccontextmanager
async def opened(backend: Backend) -> AsyncIterator[Backend]:
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_every_sequence_ends_exactly_once(started: Started) -> None:
    """Each submitted sequence gives its tokens and one end, with the last of them or after; then nothing is held."""
    async with started() as backend:
        ids = [f"r{number}" for number in range(6)]
        for number, request_id in enumerate(ids):
            backend.submit(request(request_id, max_tokens=number + 1))
        outputs = await until_ended(backend, ids)
        for number, request_id in enumerate(ids):
            assert sum(len(output.token_ids) for output in outputs[request_id]) == number + 1
            ends = [output.finish_reason for output in outputs[request_id]]
            assert ends[-1] is FinishReason.LENGTH
            assert ends[:-1] == [None] * (len(ends) - 1)
        stats = backend.stats()
        assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_abort_is_idempotent_and_frees_in_every_state(started: Started) -> None:
    """Unknown, waiting, running, aborted and ended ids may all be aborted; no aborted one ends, and blocks are free."""
    async with started() as backend:
        backend.abort(["unknown"])
        backend.submit(request("waiting", max_tokens=500))
        backend.abort(["waiting", "waiting"])
        backend.submit(request("running", max_tokens=500))
        while backend.stats().kv_blocks_used == 0:
            await backend.next_step()
        backend.abort(["running"])
        backend.abort(["running", "waiting"])
        await until_free(backend)
        backend.abort(["driver"])


async def bring(backend: Backend, one: EngineRequest, state: str) -> None:
    """Submits it and steps until it waits, is in its prefill, or decodes."""
    backend.submit(one)
    if state == "queued":
        await steps_until(backend, lambda step: bool(step.outputs))
    else:
        steps = await steps_until(backend, lambda step: one.request_id in step.scheduled)
        begun = bool(outputs_of(one.request_id, steps))
        assert not begun or state == "decode"
        if state == "decode" and not begun:
            await steps_until(backend, lambda step: bool(outputs_of(one.request_id, [step])))


@pytest.mark.parametrize(
    ("state", "company"),
    [("queued", ["neighbour"])] + [(state, ids) for state in ("prefill", "decode") for ids in ([], ["neighbour"])],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_abort_is_confirmed_in_every_state(
    kind: str, state: str, company: list[str], started: Started
) -> None:
    """Once, and soon; no output follows it, and neither ids nor blocks are held any more. A neighbour goes on."""
    batch = {"max_num_batched_tokens": 16} if kind == "simulated" else {}
    async with started(max_num_seqs=1 if state == "queued" else 2, **batch) as backend:
        for request_id in company:
            await bring(backend, request(request_id, max_tokens=400), "decode")
        long = [token_id % 20_000 + 100 for token_id in range(900 if state == "prefill" else 10)]
        params = SamplingParams(max_tokens=900, temperature=0, ignore_eos=True)
        await bring(backend, EngineRequest("gone", long, params), state)
        assert "gone" in backend.request_ids()

        backend.abort(["gone"])
        *_, confirming = await steps_until(backend, lambda step: bool(step.freed))
        assert confirming.freed == ["gone"]
        assert set(backend.request_ids()) == set(company)
        backend.abort(["gone"])  # is no news
        backend.submit(request("after", max_tokens=2))
        if state == "queued":
            backend.abort(company)
        after = await steps_until(backend, lambda step: any(output.finish_reason for output in step.outputs))
        assert outputs_of("gone", [confirming, *after]) == []
        assert "gone" not in [request_id for step in after for request_id in step.freed]
        if company and state != "queued":
            assert outputs_of("neighbour", after)
        backend.abort(company)
        await until_empty(backend)


async def until_empty(backend: Backend) -> None:
    """Steps until the engine holds nothing, which it must come to by itself."""
    async with asyncio.timeout(60):
        while backend.request_ids():
            await backend.next_step()
    stats = backend.stats()
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_abort_right_after_submission_is_confirmed(started: Started) -> None:
    """However the two cross on their way to the engine, none is lost."""
    async with started() as backend:
        ids = {f"r{number}" for number in range(200)}
        for request_id in sorted(ids):
            backend.submit(request(request_id, max_tokens=500))
            backend.abort([request_id])
            await asyncio.sleep(0)
        freed: list[str] = []
        while len(freed) < len(ids):
            freed += (await asyncio.wait_for(backend.next_step(), 60)).freed
        assert set(freed) == ids
        assert not backend.request_ids()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_wait_in_the_queue_ends_once(kind: str, started: Started) -> None:
    """Each sequence is scheduled once, before its first output and in its turn, also if it is preempted later."""
    blocks = {"num_kv_blocks": 4, "block_size": 32} if kind == "vllm" else {"num_kv_blocks": 8, "block_size": 16}
    small = {"max_num_seqs": 8, "max_model_len": 128, **blocks}
    async with started(**small) as backend:
        params = SamplingParams(max_tokens=32, temperature=0, ignore_eos=True)
        ids = ["a", "b", "c"]
        for number, request_id in enumerate(ids):
            backend.submit(EngineRequest(request_id, [500 + number, *range(1000, 1040)], params))
        assert set(backend.request_ids()) == set(ids)
        seen: list[str] = []
        ended = 0
        while ended < len(ids):
            step = await asyncio.wait_for(backend.next_step(), 60)
            seen += step.scheduled
            assert {output.request_id for output in step.outputs} <= set(seen)
            ended += sum(output.finish_reason is not None for output in step.outputs)
        assert seen == ids
        assert backend.stats().preemptions_total > 0
        assert not backend.request_ids()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_long_prefill_shows_signs_of_life(kind: str, started: Started) -> None:
    """Steps that only prefill are steps, so that whoever watches for a stall hears of them."""
    batch = {"max_num_batched_tokens": 65} if kind == "simulated" else {"max_num_seqs": 1}
    async with started(**batch) as backend:
        params = SamplingParams(max_tokens=1, temperature=0)
        backend.submit(EngineRequest("long", [index % 20_000 + 100 for index in range(650)], params))
        steps = await steps_until(backend, lambda step: bool(step.outputs))
        assert len(steps) >= 650 // 65


@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_engine_can_be_started_again(started: Started) -> None:
    """The fresh one knows nothing of what was, answers as the first did, and its totals go on."""
    async with started() as backend:
        backend.submit(request("first", max_tokens=6))
        (first,) = (await until_ended(backend, ["first"])).values()
        queries = backend.stats().prefix_cache_queries_total
        backend.submit(request("lost", max_tokens=500))
        await backend.next_step()
        await backend.close()
        assert not backend.request_ids()
        await backend.start()
        stats = backend.stats()
        assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
        assert stats.prefix_cache_queries_total >= queries
        backend.abort(["lost"])
        backend.submit(request("again", max_tokens=6))
        steps = await steps_until(backend, lambda step: any(output.finish_reason for output in step.outputs))
        assert {output.request_id for step in steps for output in step.outputs} == {"again"}
        assert [output.token_ids for output in outputs_of("again", steps)] == [output.token_ids for output in first]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_wait_loses_nothing(started: Started) -> None:
    """Whoever gives up waiting for a step finds its tokens in the next one that is waited for."""
    async with started() as backend:
        backend.submit(request("r", max_tokens=8))
        waits = 0
        token_ids: list[int] = []
        while len(token_ids) < 8:
            try:
                step = await asyncio.wait_for(backend.next_step(), 0.001)
            except TimeoutError:
                waits += 1
                assert waits < 60_000
                continue
            token_ids += [token_id for output in step.outputs for token_id in output.token_ids]
        backend.submit(request("again", max_tokens=8))
        again = (await until_ended(backend, ["again"]))["again"]
        assert token_ids == [token_id for output in again for token_id in output.token_ids]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_engine_says_so(started: Started) -> None:
    """After `close`, which is legal twice, submitting and waiting raise instead of hanging, again and again.

    A step that had come before, as of another test on the same engine, is given out first.
    """
    async with started() as backend:
        await backend.close()
        await backend.close()
        with pytest.raises(EngineUnavailableError):
            backend.submit(request("late"))
        with pytest.raises(EngineUnavailableError):
            await steps_until(backend, lambda step: bool(step.outputs))
        with pytest.raises(EngineUnavailableError):
            await backend.next_step()


@pytest.mark.parametrize("kind", KINDS)
async def test_logprobs_come_one_a_token(started: Started) -> None:
    """Where asked for, each token has its log probability, and as many alternatives as there are, best first."""
    async with started() as backend:
        backend.submit(request("r", max_tokens=4, logprobs=3))
        outputs = (await until_ended(backend, ["r"]))["r"]
        for output in outputs:
            assert output.logprobs is not None
            assert len(output.logprobs) == len(output.token_ids)
            for token_id, logprobs in zip(output.token_ids, output.logprobs, strict=True):
                assert logprobs.top[0] == (token_id, logprobs.chosen)  # greedy: the likeliest is chosen
                assert [value for _, value in logprobs.top] == sorted((v for _, v in logprobs.top), reverse=True)


@pytest.mark.parametrize("kind", REAL_KINDS)
async def test_only_the_simulated_engine_takes_a_script(started: Started) -> None:
    """A `simulate` field is refused by name where there is a model."""
    async with started() as backend:
        scripted = EngineRequest("r", PROMPT, SamplingParams(max_tokens=1), Simulation((1,)))
        with pytest.raises(UnsupportedParameterError, match="simulate"):
            backend.check(scripted)
