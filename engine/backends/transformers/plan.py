"""How one step's queries are grouped for attention: made once a step, followed by every layer.

Never touches keys or values: offsets and cache rows in, gather indices and masks out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

PADDING = 1.25
"""How much longer than its shortest the longest sequence of one decode group may be."""
SLACK = 64
"""Keys of difference in length that are always worth padding away: a group costs some fixed time."""
GROUP_BYTES = 6 << 20
"""What one decode group reads at most on a CPU, padding included: what stays in the processor's cache is read from
there a moment later. With 32 sequences of 1,000 tokens a step took 0.39 s so, 0.52 s at twice this, 0.66 s without."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one query each, their keys padded to the same number."""

    queries: list[int]
    """Position of each sequence's query among the step's."""
    index: torch.Tensor
    """What to read, [sequences * KV heads * keys]: row * KV heads + head; padding is row 0, which the cache zeroes."""
    mask: torch.Tensor | None
    """Added to the scores, [sequences, 1, 1, keys]: minus infinity where there is no key; None if all are as long."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive queries of one sequence, and all its keys up to the last of them."""

    queries: range
    index: torch.Tensor | None
    """What to read, [KV heads * keys]; None where its keys are the step's own, those of `queries`."""
    mask: torch.Tensor | None
    """True where a key may be seen, [queries, keys]; None where plain causality says it."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All of a step's queries, each in one part."""

    offsets_q: torch.Tensor
    """What the plan was made from; its identity tells one step from another."""
    parts: list[DecodeGroup | PrefillChunk]
    sizes: list[int]
    """How many queries each part has."""
    order: torch.Tensor | None
    """The step's queries in the order of the parts, [queries]; None where that is their own order."""
    back: torch.Tensor | None
    """The way back: the inverse of `order`."""


class CacheShape(NamedTuple):
    """What a plan has to know of the KV cache."""

    kv_heads: int
    width: int
    """Of one head."""
    dtype: torch.dtype

    @property
    def key_bytes(self) -> int:
        """Of one token's key and value."""
        return 2 * self.kv_heads * self.width * int(self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class _Decoding:
    """One sequence with a single query."""

    query: int
    rows: torch.Tensor
    """Cache rows of its keys."""


def make_plan(
    offsets_q: torch.Tensor, offsets_k: torch.Tensor, read_index: torch.Tensor, shape: CacheShape
) -> StepPlan:
    """Groups a step. Offsets are cumulative, [sequences + 1]; `read_index` holds the cache rows of all keys, [keys].

    An empty `read_index` says that no sequence has keys in the cache yet: the step's own are all there are.
    """
    queries = [range(*bounds) for bounds in pairwise(offsets_q.tolist())]
    if not read_index.numel():
        return _ordered(offsets_q, [PrefillChunk(query, None, None) for query in queries])
    decoding: list[_Decoding] = []
    chunks: list[PrefillChunk] = []
    for query, (start, stop) in zip(queries, pairwise(offsets_k.tolist()), strict=True):
        rows = read_index[start:stop]
        if len(query) == 1:
            decoding.append(_Decoding(query.start, rows))
        else:
            chunks.append(PrefillChunk(query, _by_head(rows[None], shape), _causal(len(query), rows)))
    limit = GROUP_BYTES // shape.key_bytes if read_index.device.type == "cpu" else None
    groups = [_group(members, shape) for members in _alike(decoding, limit)]
    return _ordered(offsets_q, [*groups, *chunks])


def _ordered(offsets_q: torch.Tensor, parts: list[DecodeGroup | PrefillChunk]) -> StepPlan:
    order = [query for part in parts for query in part.queries]
    sizes = [len(part.queries) for part in parts]
    if order == list(range(len(order))):
        return StepPlan(offsets_q, parts, sizes, None, None)
    forth = torch.tensor(order, device=offsets_q.device)
    return StepPlan(offsets_q, parts, sizes, forth, forth.argsort())


def _alike(decoding: list[_Decoding], limit: int | None) -> list[list[_Decoding]]:
    """Splits sequences where padding would cost more than one more group, or a group reads more than `limit` keys."""
    groups: list[list[_Decoding]] = []
    longest = 0.0
    for one in sorted(decoding, key=lambda one: len(one.rows)):
        keys = len(one.rows)
        full = limit is not None and groups and (len(groups[-1]) + 1) * keys > limit
        if keys > longest or full:
            groups.append([])
            longest = max(PADDING * keys, keys + SLACK)
        groups[-1].append(one)
    return groups


def _group(members: list[_Decoding], shape: CacheShape) -> DecodeGroup:
    lengths = [len(one.rows) for one in members]
    longest = max(lengths)
    rows = torch.nn.utils.rnn.pad_sequence([one.rows for one in members], batch_first=True)
    mask = None
    if min(lengths) < longest:
        missing = torch.arange(longest, device=rows.device) >= torch.tensor(lengths, device=rows.device).unsqueeze(1)
        mask = torch.zeros(missing.shape, dtype=shape.dtype, device=rows.device).masked_fill(missing, -torch.inf)
        mask = mask[:, None, None, :]
    return DecodeGroup([one.query for one in members], _by_head(rows, shape), mask)


def _by_head(rows: torch.Tensor, shape: CacheShape) -> torch.Tensor:
    """Cache rows, [sequences, keys], as a flat index that reads each KV head's keys side by side."""
    heads = torch.arange(shape.kv_heads, device=rows.device)
    return (rows[:, None, :] * shape.kv_heads + heads[:, None]).flatten()


def _causal(queries: int, rows: torch.Tensor) -> torch.Tensor | None:
    keys = len(rows)
    if queries == keys:
        return None
    return torch.ones(queries, keys, dtype=torch.bool, device=rows.device).tril(diagonal=keys - queries)
