"""One step of the sampler on made-up logits, for its tests. Never a check of what was chosen."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from engine.backends.transformers.sampler import choose
from engine.backends.transformers.sequence import Sequence
from engine.types import EngineRequest, SamplingParams

CPU = torch.device("cpu")
EOS = frozenset({2})
VOCABULARY = 50


def sequence(prompt: tuple[int, ...] = (5, 6), **sampling: Any) -> Sequence:
    params = SamplingParams(**{"max_tokens": 100, "temperature": 0.0, **sampling})
    return Sequence(EngineRequest("one", prompt, params), EOS, CPU)


def logits(seed: int = 0, vocabulary: int = VOCABULARY, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


def step(row: torch.Tensor, one: Sequence) -> int:
    """One step of one sequence, as the engine does it."""
    scores = row.clone().unsqueeze(0)
    choose(scores, [one])
    assert one.failure is None
    token_id = int(scores.argmax())
    one.append(token_id)
    return token_id


def drawn_from(row: torch.Tensor, draws: int = 1500, **sampling: Any) -> Counter[int]:
    """How often each token id comes up in so many draws, each a row of one batch with a seed of its own."""
    sequences = [sequence(seed=seed, **{"temperature": 1.0, **sampling}) for seed in range(draws)]
    scores = row.repeat(draws, 1)
    choose(scores, sequences)
    return Counter(scores.argmax(dim=-1).tolist())
