"""Engines for tests: a core over the simulated backend, without pause between steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from engine.backends.simulated import SimulatedBackend
from engine.config import EngineConfig
from engine.core import DEFAULT_SUPERVISION, EngineCore
from engine.detokenizer import Vocabulary
from engine.output.result import AnswerResult
from engine.stream import SequenceStream
from engine.supervisor import SupervisionConfig
from engine.types import EngineRequest, FinishReason, ModelLimits, SamplingParams, Simulation

QUICK = SupervisionConfig(backoff=0.02, backoff_max=0.1, stall_timeout=0.1, close_timeout=0.2)
"""For engines that die or hang: what takes seconds in earnest takes milliseconds."""
LIMITS = ModelLimits(context_length=8_192, vocab_size=49_152, eos_token_ids=frozenset({2}))


def simulated_backend(**settings: object) -> SimulatedBackend:
    config = EngineConfig.model_validate({"kind": "simulated", "step_interval_ms": 0, **settings})
    return SimulatedBackend(config, LIMITS, lambda text: list(text.encode()))


@asynccontextmanager
async def running_core(
    vocabulary: Vocabulary, supervision: SupervisionConfig = DEFAULT_SUPERVISION, **settings: object
) -> AsyncIterator[EngineCore]:
    """A started core, closed at the end."""
    core = EngineCore(simulated_backend(**settings), vocabulary, supervision)
    await core.start()
    try:
        yield core
    finally:
        await core.close()


def scripted(
    request_id: str, token_ids: Sequence[int], *, max_tokens: int = 1_000, prompt_tokens: int = 4
) -> EngineRequest:
    """A request whose answer is these ids."""
    simulation = Simulation(tuple(token_ids), then=FinishReason.STOP)
    return EngineRequest(request_id, [1] * prompt_tokens, SamplingParams(max_tokens=max_tokens), simulation)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until the condition holds; fails after some seconds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is the absence or the end of things
            await asyncio.sleep(0.001)


async def fold(stream: SequenceStream) -> AnswerResult:
    """Enters the stream and takes all of it."""
    result = AnswerResult(len(stream.requests))
    async with stream:
        async for steps in stream:
            for step in steps:
                result.fold(step)
    return result
