"""What a request takes out of the vocabulary: all but its allowed ids, and what would complete one of its bad words.

Never a grammar, which forbids by where an answer stands in it. Nothing here rereads the sequence.
"""

from __future__ import annotations

from collections import deque
from typing import Self

import torch

from engine.types import SamplingParams


class ForbiddenTokens:
    """Of one sequence, kept up token by token."""

    def __init__(self, sampling: SamplingParams, device: torch.device) -> None:
        allowed = sampling.allowed_token_ids
        self._allowed = None if allowed is None else torch.tensor(sorted(allowed), dtype=torch.int64, device=device)
        always = [sequence[0] for sequence in sampling.bad_words if len(sequence) == 1]
        self._always = torch.tensor(always, dtype=torch.int64, device=device)
        self._longer = [sequence for sequence in sampling.bad_words if len(sequence) > 1]
        self._recent: deque[int] = deque(maxlen=max(map(len, self._longer), default=1) - 1)
        """The last generated ids, as many as the longest bad word has before its last."""

    @classmethod
    def of(cls, sampling: SamplingParams, device: torch.device) -> Self | None:
        """None: nothing is forbidden."""
        return None if sampling.allowed_token_ids is None and not sampling.bad_words else cls(sampling, device)

    def add(self, token_id: int) -> None:
        """Takes note of a generated token."""
        self._recent.append(token_id)

    def apply(self, logits: torch.Tensor) -> None:
        """Minus infinity for what is forbidden now, in one row, shape [vocabulary], in place."""
        if self._allowed is not None:
            kept = logits[self._allowed]
            logits.fill_(-torch.inf)
            logits[self._allowed] = kept
        logits[self._always] = -torch.inf
        recent = tuple(self._recent)
        for *before, last in self._longer:
            if len(before) <= len(recent) and recent[-len(before) :] == tuple(before):
                logits[last] = -torch.inf
