"""How the contract's tests drive a backend: requests alike, and steps up to what a test waits for.

Never an assertion about one backend in particular.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from engine.backends.base import Backend
from engine.types import EngineRequest, SamplingParams, SequenceOutput, StepOutputs

MAX_STEPS = 2_000
PROMPT = [1, 4093, 198, 19556]


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


async def steps_until(backend: Backend, condition: Callable[[StepOutputs], bool]) -> list[StepOutputs]:
    """The steps up to the one that meets the condition."""
    steps: list[StepOutputs] = []
    while len(steps) < MAX_STEPS:
        steps.append(await asyncio.wait_for(backend.next_step(), 60))
        if condition(steps[-1]):
            return steps
    raise AssertionError("never came")


def outputs_of(request_id: str, steps: Sequence[StepOutputs]) -> list[SequenceOutput]:
    return [output for step in steps for output in step.outputs if output.request_id == request_id]
