"""What the transformers backend keeps of one sequence between steps: random numbers, penalties, grammar and results.

Never touches the scheduler or the event loop; only the engine's thread writes to it once it is submitted.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch

from engine.backends.transformers.forbidden import ForbiddenTokens
from engine.grammar import Follower
from engine.types import EngineRequest, SamplingParams, SequenceOutput, TokenLogprobs

COLDEST = 1e-5
"""Temperatures below are greedy: dividing logits by less overflows, and the likeliest token would win anyway."""
SLOTS = 64
"""Token ids that a penalty table has room for at first; it doubles when full."""


class PenaltyTable:
    """The distinct token ids of one sequence and how often each was generated, kept up step by step.

    Sparse: a step touches as many logits as there are distinct ids, never the whole vocabulary, and never
    rereads the sequence.
    """

    def __init__(self, sampling: SamplingParams, prompt_token_ids: Iterable[int], device: torch.device) -> None:
        self.sampling = sampling
        # Only the repetition penalty looks at the prompt.
        prompt = sorted(set(prompt_token_ids)) if sampling.repetition_penalty != 1.0 else []
        room = max(SLOTS, 2 * len(prompt))
        self._slots = {token_id: slot for slot, token_id in enumerate(prompt)}
        self._ids = torch.zeros(room, dtype=torch.int64, device=device)
        self._ids[: len(prompt)] = torch.tensor(prompt, dtype=torch.int64, device=device)
        self._counts = torch.zeros(room, dtype=torch.float32, device=device)

    def add(self, token_id: int) -> None:
        """Counts one generated token."""
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            self._ids = torch.cat([self._ids, torch.zeros_like(self._ids)])
            self._counts = torch.cat([self._counts, torch.zeros_like(self._counts)])
        self._ids[slot] = token_id
        self._counts[slot] += 1

    def apply(self, logits: torch.Tensor) -> None:
        """Penalizes one row of logits, shape [vocabulary], in place: repetition first, as vLLM does."""
        used = len(self._slots)
        if not used:
            return
        ids, counts = self._ids[:used], self._counts[:used]
        values = logits[ids]
        repetition = self.sampling.repetition_penalty
        if repetition != 1.0:
            values = torch.where(values > 0, values / repetition, values * repetition)
        values = values - self.sampling.frequency_penalty * counts - self.sampling.presence_penalty * (counts > 0)
        logits[ids] = values


class Sequence:
    """One submitted request, from `submit` to its end, across preemptions."""

    __slots__ = (
        "_bias",
        "_held_back",
        "_plain",
        "cached_tokens",
        "failure",
        "follower",
        "forbidden",
        "generated",
        "greedy",
        "logprobs",
        "penalties",
        "request",
        "rng",
        "scheduled",
        "stop_ids",
    )

    def __init__(self, request: EngineRequest, eos_token_ids: frozenset[int], device: torch.device) -> None:
        """`eos_token_ids`: the model's own, which the request may ignore."""
        sampling = request.sampling
        self.request = request
        # A complete sentence of a grammar has to end, whatever else was asked for.
        endless = sampling.ignore_eos and request.grammar is None
        self.stop_ids = sampling.stop_token_ids if endless else sampling.stop_token_ids | eos_token_ids
        self.greedy = sampling.temperature < COLDEST or sampling.top_k == 1
        self.rng = random.Random(None if sampling.seed is None else str(sampling.seed))
        self.generated = 0
        self.cached_tokens = 0
        self.scheduled = False
        """Its prefill has begun once."""
        self.logprobs: TokenLogprobs | None = None
        self.failure: str | None = None
        self.penalties = _penalty_table(request, device)
        self.follower = None if request.grammar is None else Follower(request.grammar)
        """Where its answer stands in the grammar: behind every token that was generated, each taken once."""
        self.forbidden = ForbiddenTokens.of(sampling, device)
        self._bias = _bias(sampling, device)
        self._held_back = torch.tensor(sorted(self.stop_ids), dtype=torch.int64, device=device)
        adjusting = (self.penalties, self._bias, self.follower, self.forbidden)
        adjusted = any(one is not None for one in adjusting)
        self._plain = self.greedy and not adjusted and sampling.logprobs is None

    @property
    def plain(self) -> bool:
        """The next token is the likeliest and nothing more is asked: the step's fast path."""
        return self._plain and self.generated >= self.request.sampling.min_tokens

    @property
    def held_back(self) -> frozenset[int]:
        """With a grammar: the tokens that may not come yet, if any other can."""
        sampling = self.request.sampling
        if self.generated < sampling.min_tokens:
            return self.stop_ids
        return self.stop_ids - sampling.stop_token_ids if sampling.ignore_eos else frozenset()

    def adjust(self, logits: torch.Tensor) -> None:
        """Applies every parameter but a grammar to one row, shape [vocabulary], in place; `min_tokens` without one."""
        if self.follower is None and self.generated < self.request.sampling.min_tokens:
            logits[self._held_back[self._held_back < len(logits)]] = -torch.inf
        if self.forbidden is not None:
            self.forbidden.apply(logits)
        if self._bias is not None:
            ids, values = self._bias
            logits[ids] += values
        if self.penalties is not None:
            self.penalties.apply(logits)

    def append(self, token_id: int) -> None:
        """Takes note of a generated token."""
        self.generated += 1
        if self.forbidden is not None:
            self.forbidden.add(token_id)
        if self.penalties is not None:
            self.penalties.add(token_id)
        if self.follower is not None:
            self.follower.take(token_id)


Delivery = tuple[Sequence, SequenceOutput]
"""What a step generated for a sequence."""


def _penalty_table(request: EngineRequest, device: torch.device) -> PenaltyTable | None:
    sampling = request.sampling
    if sampling.repetition_penalty == 1.0 and not sampling.frequency_penalty and not sampling.presence_penalty:
        return None
    return PenaltyTable(sampling, request.prompt_token_ids, device)


def _bias(sampling: SamplingParams, device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
    if not sampling.logit_bias:
        return None
    ids = torch.tensor(list(sampling.logit_bias), dtype=torch.int64, device=device)
    return ids, torch.tensor(list(sampling.logit_bias.values()), dtype=torch.float32, device=device)
