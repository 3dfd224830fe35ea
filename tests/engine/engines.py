"""Engines for tests: a core over the simulated backend, without pause between steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from engine.backends.simulated import SimulatedBackend
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.detokenizer import Vocabulary
from engine.types import EngineRequest, FinishReason, ModelLimits, SamplingParams, Simulation

LIMITS = ModelLimits(context_length=8_192, vocab_size=49_152, eos_token_ids=frozenset({2}))


def simulated_backend(**settings: object) -> SimulatedBackend:
    config = EngineConfig.model_validate({"kind": "simulated", "step_interval_ms": 0, **settings})
    return SimulatedBackend(config, LIMITS, lambda text: list(text.encode()))


@asynccontextmanager
async def running_core(vocabulary: Vocabulary, **settings: object) -> AsyncIterator[EngineCore]:
    """A started core, closed at the end."""
    core = EngineCore(simulated_backend(**settings), vocabulary)
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
