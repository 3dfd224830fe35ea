"""Asks a backend directly: whole answers out of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.backends.base import Backend
from engine.types import EngineRequest, FinishReason, SamplingParams, StepOutputs, TokenLogprobs

STEP_SECONDS = 120
"""Longest that a step may take on a machine that others use too."""
PROMPT = [1, 4093, 198, 19556]


@dataclass(slots=True)
class Answer:
    """What became of one sequence."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    grouping: list[int] = field(default_factory=list)
    """Tokens in each step."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None


def greedy(request_id: str, prompt: Sequence[int] = PROMPT, *, max_tokens: int = 8, **sampling: Any) -> EngineRequest:
    """A request at temperature 0, unless `sampling` says otherwise."""
    params = SamplingParams(**{"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True} | sampling)
    return EngineRequest(request_id, prompt, params)


async def next_step(backend: Backend) -> StepOutputs:
    return await asyncio.wait_for(backend.next_step(), STEP_SECONDS)


async def ask(backend: Backend, *requests: EngineRequest) -> list[Answer]:
    """All together, up to the last one's end."""
    for request in requests:
        backend.check(request)
        backend.submit(request)
    answers = {request.request_id: Answer() for request in requests}
    while any(answer.finish_reason is None for answer in answers.values()):
        for output in (await next_step(backend)).outputs:
            answer = answers[output.request_id]
            answer.token_ids += output.token_ids
            answer.logprobs += output.logprobs or []
            answer.prompt_logprobs = output.prompt_logprobs or answer.prompt_logprobs
            answer.grouping.append(len(output.token_ids))
            answer.cached_tokens += output.cached_tokens
            answer.finish_reason, answer.stop_token_id = output.finish_reason, output.stop_token_id
    return list(answers.values())
