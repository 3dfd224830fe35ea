"""Runs of sequences on a backend: submits, collects until all have ended, and waits for counts with a deadline.

Never waits without a bound.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.backends.base import Backend
from engine.types import EngineRequest, EngineStats, FinishReason, SamplingParams, SequenceOutput, TokenLogprobs

STEP_SECONDS = 60.0
"""Longer than any step takes on a busy machine."""
_numbers = itertools.count()


@dataclass(slots=True)
class Answer:
    """All that a backend said of one sequence."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    cached_tokens: int = 0
    outputs: int = 0

    def add(self, output: SequenceOutput) -> None:
        assert self.finish_reason is None, "an output after the last"
        if not self.outputs:
            self.cached_tokens = output.cached_tokens
        self.outputs += 1
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or []
        self.finish_reason, self.stop_token_id = output.finish_reason, output.stop_token_id
        self.error = output.error


def request(prompt: Sequence[int], max_tokens: int = 16, **sampling: Any) -> EngineRequest:
    """A greedy sequence with an id of its own, unless told otherwise."""
    params = SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, **sampling})
    return EngineRequest(f"sequence-{next(_numbers)}", list(prompt), params)


async def run(backend: Backend, *requests: EngineRequest) -> list[Answer]:
    """Submits all at once and returns their answers in order."""
    for one in requests:
        backend.submit(one)
    return await collect(backend, [one.request_id for one in requests])


async def collect(backend: Backend, request_ids: Sequence[str]) -> list[Answer]:
    """The answers of submitted sequences, each to its end."""
    answers = {request_id: Answer() for request_id in request_ids}
    while any(answer.finish_reason is None for answer in answers.values()):
        step = await asyncio.wait_for(backend.next_step(), STEP_SECONDS)
        for output in step.outputs:
            if output.request_id in answers:
                answers[output.request_id].add(output)
    return list(answers.values())


async def answer(backend: Backend, prompt: Sequence[int], max_tokens: int = 16, **sampling: Any) -> Answer:
    return (await run(backend, request(prompt, max_tokens, **sampling)))[0]


async def until(backend: Backend, holds: Callable[[EngineStats], bool], seconds: float = STEP_SECONDS) -> EngineStats:
    """The first stats for which `holds`; fails when there are none within `seconds`."""
    async with asyncio.timeout(seconds):
        while not holds(stats := backend.stats()):  # noqa: ASYNC110 - blocks are freed without a word
            await asyncio.sleep(0.005)
    return stats


def is_empty(stats: EngineStats) -> bool:
    return stats.running == 0 and stats.waiting == 0 and stats.kv_blocks_used == 0
