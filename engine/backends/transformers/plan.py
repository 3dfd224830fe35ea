"""How one step's queries are grouped for attention: made once a step, followed by every layer.

Never touches keys or values: offsets and cache rows in, page numbers and masks out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

PADDING = 1.25
"""How much longer than its shortest the longest sequence of one decode group may be."""
SLACK = 2
"""Pages of difference in length that are always worth padding away: a group costs some fixed time."""
GROUP_TOKENS = 8192
"""Keys that one decode group reads at most on a CPU, padding included: about what its cache holds."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one query each, their keys padded to the same number of pages."""

    queries: list[int]
    """Position of each sequence's query among the step's."""
    pages: torch.Tensor
    """Pages to read, [sequences * pages each]; padding is page 0, which the cache keeps zeroed."""
    keys: int
    """Keys of the longest sequence."""
    mask: torch.Tensor | None
    """Added to the scores, [sequences, 1, 1, keys]: minus infinity where there is no key; None if all are as long."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive queries of one sequence, and all its keys up to the last of them."""

    queries: range
    keys: slice
    """Where its keys stand: in `pages` side by side, or among the step's own."""
    pages: torch.Tensor | None
    """Pages that hold its keys; None where they are the step's own."""
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


class PageShape(NamedTuple):
    """What a plan has to know of the KV cache."""

    size: int
    """Tokens in one page."""
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Decoding:
    """One sequence with a single query."""

    query: int
    keys: int
    pages: torch.Tensor


def make_plan(offsets_q: torch.Tensor, offsets_k: torch.Tensor, read_index: torch.Tensor, pages: PageShape) -> StepPlan:
    """Groups a step. Offsets are cumulative, [sequences + 1]; `read_index` holds the cache rows of all keys, [keys].

    An empty `read_index` says that no sequence has keys in the cache yet: the step's own are all there are.
    """
    queries = [range(*bounds) for bounds in pairwise(offsets_q.tolist())]
    keys = [range(*bounds) for bounds in pairwise(offsets_k.tolist())]
    cached = read_index.numel() > 0
    decoding: list[_Decoding] = []
    chunks: list[PrefillChunk] = []
    for query, key in zip(queries, keys, strict=True):
        # A sequence's rows start at a page's first row and follow one another, page by page.
        numbers = read_index[key.start : key.stop : pages.size] // pages.size if cached else None
        if numbers is not None and len(query) == 1:
            decoding.append(_Decoding(query.start, len(key), numbers))
        else:
            own = slice(query.start, query.stop) if numbers is None else slice(len(key))
            chunks.append(PrefillChunk(query, own, numbers, _causal(len(query), len(key), read_index.device)))
    limit = GROUP_TOKENS // pages.size if read_index.device.type == "cpu" else None
    groups = [_group(members, pages.dtype) for members in _alike(decoding, limit)]
    return _ordered(offsets_q, [*groups, *chunks])


def _ordered(offsets_q: torch.Tensor, parts: list[DecodeGroup | PrefillChunk]) -> StepPlan:
    order = [query for part in parts for query in part.queries]
    sizes = [len(part.queries) for part in parts]
    if order == list(range(len(order))):
        return StepPlan(offsets_q, parts, sizes, None, None)
    forth = torch.tensor(order, device=offsets_q.device)
    return StepPlan(offsets_q, parts, sizes, forth, forth.argsort())


def _alike(decoding: list[_Decoding], limit: int | None) -> list[list[_Decoding]]:
    """Splits sequences where padding would cost more than one more group, or a group reads more than `limit` pages."""
    groups: list[list[_Decoding]] = []
    longest = 0.0
    for one in sorted(decoding, key=lambda one: len(one.pages)):
        pages = len(one.pages)
        full = limit is not None and groups and (len(groups[-1]) + 1) * pages > limit
        if pages > longest or full:
            groups.append([])
            longest = max(PADDING * pages, pages + SLACK)
        groups[-1].append(one)
    return groups


def _group(members: list[_Decoding], dtype: torch.dtype) -> DecodeGroup:
    lengths = [one.keys for one in members]
    longest = max(lengths)
    pages = torch.nn.utils.rnn.pad_sequence([one.pages for one in members], batch_first=True)
    mask = None
    if min(lengths) < longest:
        missing = torch.arange(longest, device=pages.device) >= torch.tensor(lengths, device=pages.device).unsqueeze(1)
        mask = torch.zeros(missing.shape, dtype=dtype, device=pages.device).masked_fill(missing, -torch.inf)
        mask = mask[:, None, None, :]
    return DecodeGroup([one.query for one in members], pages.flatten(), longest, mask)


def _causal(queries: int, keys: int, device: torch.device) -> torch.Tensor | None:
    if queries == keys:
        return None
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(diagonal=keys - queries)
