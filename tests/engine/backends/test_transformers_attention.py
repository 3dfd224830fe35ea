"""Paged attention against a dense one, sequence by sequence, on made-up states."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.backends.transformers import plan as planning
from engine.backends.transformers.attention import paged_attention, supports
from engine.backends.transformers.plan import CacheShape, DecodeGroup, make_plan

PAGE, KV_HEADS, SHARING, WIDTH = 8, 2, 3, 16
PAGES = 200
SHAPE = CacheShape(KV_HEADS, WIDTH, torch.float32)
LAYER = SimpleNamespace(layer_idx=0)


class PagedCache:
    """The part of the KV cache that attention asks for, one layer of it."""

    def __init__(self) -> None:
        shape = (PAGES, PAGE, KV_HEADS, WIDTH)
        self.keys, self.values = torch.randn(shape), torch.randn(shape)
        self.keys[0] = self.values[0] = 0
        self.layer_to_allocator = {0: self}
        self.free = random.Random(0).sample(range(1, PAGES), PAGES - 1)

    def get_cache_for_block_table(self, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys, self.values

    def place(self, count: int) -> list[int]:
        """Cache rows for so many tokens of a new sequence."""
        pages = [self.free.pop() for _ in range(-(-count // PAGE))]
        return [page * PAGE + place for page in pages for place in range(PAGE)][:count]


def attend(lengths: list[tuple[int, int]], *, read: bool = True) -> None:
    """One step of sequences given as (keys before, queries now), against dense attention on each alone."""
    cache = PagedCache()
    rows = [cache.place(before + now) for before, now in lengths]
    total = sum(now for _, now in lengths)
    query = torch.randn(1, KV_HEADS * SHARING, total, WIDTH)
    key, value = torch.randn(2, 1, KV_HEADS, total, WIDTH)
    kwargs = step_inputs(cache, rows, lengths, read=read)
    output, _ = paged_attention(LAYER, query, key, value, None, **kwargs)
    assert output.shape == (1, total, KV_HEADS * SHARING, WIDTH)
    start = 0
    for places, (before, now) in zip(rows, lengths, strict=True):
        expected = dense(query[:, :, start : start + now], cache, places, before)
        torch.testing.assert_close(output[:, start : start + now], expected)
        start += now


def step_inputs(
    cache: PagedCache, rows: list[list[int]], lengths: list[tuple[int, int]], *, read: bool
) -> dict[str, Any]:
    offsets_q, offsets_k = [0], [0]
    for before, now in lengths:
        offsets_q.append(offsets_q[-1] + now)
        offsets_k.append(offsets_k[-1] + before + now)
    write = [place for places, (before, _) in zip(rows, lengths, strict=True) for place in places[before:]]
    return {
        "cache": cache,
        "scaling": 0.25,
        "cu_seq_lens_q": torch.tensor(offsets_q, dtype=torch.int32),
        "cu_seq_lens_k": {"full_attention": torch.tensor(offsets_k, dtype=torch.int32)},
        "read_index": [torch.tensor([place for places in rows for place in places] if read else [], dtype=torch.int64)],
        "write_index": [torch.tensor(write)],
    }


def dense(query: torch.Tensor, cache: PagedCache, places: list[int], before: int) -> torch.Tensor:
    key, value = (
        states.flatten(0, 1)[places].transpose(0, 1).repeat_interleave(SHARING, dim=0).unsqueeze(0)
        for states in (cache.keys, cache.values)
    )
    mask = torch.ones(query.shape[2], len(places), dtype=torch.bool).tril(before)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.25).transpose(1, 2)


@pytest.mark.parametrize(
    "lengths",
    [
        [(12, 1)],
        [(0, 20)],
        [(PAGE, PAGE)],
        [(30, 5)],
        [(7, 1), (8, 1), (9, 1)],
        [(100, 1), (3, 1), (40, 1), (41, 1), (1, 1)],
        [(0, 1), (5, 1)],
        [(20, 1), (0, 17), (33, 1), (16, 9), (2, 1)],
        [(15, 1)] * 20,
    ],
)
def test_every_sequence_attends_to_itself_alone(lengths: list[tuple[int, int]]) -> None:
    """Decode, prefill and both at once, on and off page borders, give what each sequence gives alone."""
    attend(lengths)


def test_prompts_without_a_past_read_no_cache() -> None:
    """When no sequence has keys in the cache, the step's own are used."""
    attend([(0, 9), (0, 1), (0, 30)], read=False)


def test_random_steps() -> None:
    """Whatever the mix."""
    source = random.Random(4)
    for _ in range(30):
        kinds = [(source.randrange(90), source.choice([1, 1, 1, source.randrange(2, 20)])) for _ in range(12)]
        attend(kinds)


def grouping(lengths: list[int]) -> list[tuple[list[int], int]]:
    """How sequences of so many keys, one query each, are grouped: which, and the keys that each reads."""
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    rows = torch.cat([torch.arange(length) for length in lengths])
    step = make_plan(torch.arange(len(lengths) + 1), torch.tensor(offsets), rows, SHAPE)
    assert sorted(query for part in step.parts for query in part.queries) == list(range(len(lengths)))
    groups = [part for part in step.parts if isinstance(part, DecodeGroup)]
    return [(part.queries, len(part.index) // KV_HEADS // len(part.queries)) for part in groups]


def test_padding_is_bounded() -> None:
    """No group pads a sequence by much more than its own length, and like lengths stay together."""
    lengths = [10, 11, 100, 120, 500, 510, 2000]
    assert grouping([50] * 10) == [(list(range(10)), 50)]
    for members, keys in grouping(lengths):
        shortest = min(lengths[member] for member in members)
        assert keys == max(lengths[member] for member in members)
        assert keys <= max(planning.PADDING * shortest, shortest + planning.SLACK)


def test_a_group_reads_no_more_than_the_processors_cache_holds() -> None:
    """Many long sequences are split; a single one longer than that is read whole."""
    limit = planning.GROUP_BYTES // SHAPE.key_bytes
    assert [len(members) for members, _ in grouping([limit // 4] * 10)] == [4, 4, 2]
    assert grouping([2 * limit]) == [([0], 2 * limit)]


def test_layers_that_are_not_plain_are_left_to_the_library() -> None:
    """Sliding windows, soft caps, sinks and unequal widths take the library's own attention."""

    def config(**fields: Any) -> SimpleNamespace:
        return SimpleNamespace(**{"model_type": "llama", **fields})

    assert supports(config())
    assert supports(config(layer_types=["full_attention"] * 2, sliding_window=4096))
    assert not supports(config(sliding_window=4096))
    assert not supports(config(layer_types=["full_attention", "sliding_attention"]))
    assert not supports(config(attn_logit_softcapping=50.0))
    assert not supports(config(kv_lora_rank=512))
    assert not supports(config(model_type="gpt_oss"))
