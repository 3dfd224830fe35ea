"""The contract of every backend (`engine.backends.base.Backend`), one suite over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.backends.base import Backend
from engine.backends.transformers import TransformersBackend
from engine.config import EngineConfig
from engine.errors import EngineUnavailableError, UnsupportedParameterError
from engine.types import EngineRequest, FinishReason, SamplingParams, SequenceOutput, Simulation
from tests.engine.engines import simulated_backend

pytestmark = pytest.mark.anyio
MAX_STEPS = 2_000
PROMPT = [1, 4093, 198, 19556]
KINDS = ["simulated", pytest.param("transformers", marks=pytest.mark.real_model)]


@asynccontextmanager
async def started(kind: str, folder: Path) -> AsyncIterator[Backend]:
    backend: Backend = simulated_backend() if kind == "simulated" else TransformersBackend(EngineConfig(), folder)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


def request(request_id: str, *, max_tokens: int = 5, **sampling: object) -> EngineRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, **sampling)  # type: ignore[arg-type]
    return EngineRequest(request_id, PROMPT, params)


async def until_ended(backend: Backend, request_ids: Sequence[str]) -> dict[str, list[SequenceOutput]]:
    """Every output of these sequences, up to the last one's end."""
    outputs: dict[str, list[SequenceOutput]] = {request_id: [] for request_id in request_ids}
    open_ids = set(request_ids)
    for _ in range(MAX_STEPS):
        if not open_ids:
            return outputs
        for output in (await backend.next_step()).outputs:
            if output.request_id in outputs:
                outputs[output.request_id].append(output)
                if output.finish_reason is not None:
                    open_ids.remove(output.request_id)
    raise AssertionError(f"never ended: {open_ids}")


async def until_free(backend: Backend) -> None:
    """A neighbour's steps drive the engine until only the neighbour is left of what it holds."""
    backend.submit(request("driver", max_tokens=3))
    await until_ended(backend, ["driver"])
    stats = backend.stats()
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_sequence_ends_exactly_once(kind: str, demo_model: Path) -> None:
    """Each submitted sequence gives its tokens and one end, with the last of them or after; then nothing is held."""
    async with started(kind, demo_model) as backend:
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
async def test_abort_is_idempotent_and_frees_in_every_state(kind: str, demo_model: Path) -> None:
    """Unknown, waiting, running, aborted and ended ids may all be aborted; no aborted one ends, and blocks are free."""
    async with started(kind, demo_model) as backend:
        backend.abort(["unknown"])
        backend.submit(request("waiting", max_tokens=500))
        backend.abort(["waiting", "waiting"])
        backend.submit(request("running", max_tokens=500))
        await backend.next_step()
        assert backend.stats().kv_blocks_used > 0
        backend.abort(["running"])
        backend.abort(["running", "waiting"])
        await until_free(backend)
        backend.abort(["driver"])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_wait_loses_nothing(kind: str, demo_model: Path) -> None:
    """Whoever gives up waiting for a step finds its tokens in the next one that is waited for."""
    async with started(kind, demo_model) as backend:
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
async def test_a_closed_engine_says_so(kind: str, demo_model: Path) -> None:
    """After `close`, which is legal twice, submitting and waiting raise instead of hanging."""
    async with started(kind, demo_model) as backend:
        await backend.close()
        with pytest.raises(EngineUnavailableError):
            backend.submit(request("late"))
        with pytest.raises(EngineUnavailableError):
            await backend.next_step()


@pytest.mark.parametrize("kind", KINDS)
async def test_logprobs_come_one_a_token(kind: str, demo_model: Path) -> None:
    """Where asked for, each token has its log probability, and as many alternatives as there are, best first."""
    async with started(kind, demo_model) as backend:
        backend.submit(request("r", max_tokens=4, logprobs=3))
        outputs = (await until_ended(backend, ["r"]))["r"]
        for output in outputs:
            assert output.logprobs is not None
            assert len(output.logprobs) == len(output.token_ids)
            for token_id, logprobs in zip(output.token_ids, output.logprobs, strict=True):
                assert logprobs.top[0] == (token_id, logprobs.chosen)  # greedy: the likeliest is chosen
                assert [value for _, value in logprobs.top] == sorted((v for _, v in logprobs.top), reverse=True)


@pytest.mark.real_model
async def test_only_the_simulated_engine_takes_a_script(demo_model: Path) -> None:
    """A `simulate` field is refused by name where there is a model."""
    async with started("transformers", demo_model) as backend:
        scripted = EngineRequest("r", PROMPT, SamplingParams(max_tokens=1), Simulation((1,)))
        with pytest.raises(UnsupportedParameterError, match="simulate"):
            backend.check(scripted)
