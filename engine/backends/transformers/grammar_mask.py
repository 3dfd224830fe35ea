"""Keeps sequences to their grammars: what can't come next gets minus infinity, before anything is chosen.

Never touches a row without a grammar, and costs a step without grammars nothing. A mask takes 10 to 100 microseconds,
so it is computed in the step that needs it; all rows are masked in one operation, since each of torch's waits for all
processors.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import torch

from engine.backends.transformers.sequence import Sequence
from engine.grammar import Follower


def forbid(logits: torch.Tensor, sequences: Rows[Sequence]) -> None:
    """Masks the rows that keep to a grammar, in place; `logits` is [rows, vocabulary].

    Raises `ValueError` for a row whose grammar can't be followed any further.
    """
    if all(sequence.follower is None for sequence in sequences):
        return
    forbidden = np.zeros(logits.shape, dtype=np.bool_)
    for row, sequence in enumerate(sequences):
        if sequence.follower is not None:
            allowed = _allowed(sequence.follower, logits.shape[-1])
            if held_back := sequence.held_back:
                _hold_back(allowed, held_back)
            np.logical_not(allowed, out=forbidden[row])
    logits.masked_fill_(torch.from_numpy(forbidden).to(logits.device), -torch.inf)


def _allowed(follower: Follower, vocabulary: int) -> np.ndarray:
    """Which tokens may come next: booleans, [vocabulary]."""
    mask = np.frombuffer(follower.allowed(), dtype=np.uint8)
    allowed: np.ndarray = np.unpackbits(mask, count=vocabulary, bitorder="little").view(np.bool_)
    return allowed


def _hold_back(allowed: np.ndarray, token_ids: frozenset[int]) -> None:
    """Forbids these too while anything else can come: a complete sentence can only end."""
    going_on = allowed.copy()
    going_on[[token_id for token_id in token_ids if token_id < len(allowed)]] = False
    if going_on.any():
        allowed[:] = going_on
