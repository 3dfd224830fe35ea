"""Attention over the paged KV cache, each sequence against its own keys only.

The stock `sdpa` of continuous batching lets every query see all sequences' keys under a mask, which costs the
batch size squared. Here each prefill chunk runs alone, and decode rows of like length run together.
Never used for sliding-window layers, soft caps, attention sinks or a block table: `supports` says where it applies.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.backends.transformers.plan import DecodeGroup, PageShape, PrefillChunk, StepPlan, make_plan


class _ThreadState(threading.local):
    """Each engine's thread has its own plan and buffers."""

    plan: StepPlan | None = None
    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None


_thread = _ThreadState()


def supports(config: Any) -> bool:
    """Whether all of this model's layers are plain full attention."""
    special = ("attn_logit_softcapping", "kv_lora_rank")  # soft caps; keys and values of different widths
    if config.model_type == "gpt_oss" or any(getattr(config, one, None) is not None for one in special):
        return False
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        return all(layer_type == "full_attention" for layer_type in layer_types)
    return getattr(config, "sliding_window", None) is None


def paged_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: None, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """An attention function in the shape that transformers asks for.

    `query` [1, heads, queries, width], `key` and `value` [1, KV heads, queries, width], the step's sequences one
    after another. Returns [1, queries, heads, width].
    """
    cache, scaling = kwargs["cache"], kwargs.get("scaling")
    allocator = cache.layer_to_allocator[module.layer_idx]
    key_pages, value_pages = allocator.get_cache_for_block_table(module.layer_idx)
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    write_index = kwargs["write_index"][0]
    key_pages.flatten(0, 1).index_copy_(0, write_index, keys)
    value_pages.flatten(0, 1).index_copy_(0, write_index, values)
    plan = _plan(kwargs, PageShape(key_pages.shape[1], key_pages.dtype))
    if plan.order is not None:
        queries = queries[plan.order]
    parts = []
    for part, rows in zip(plan.parts, queries.split(plan.sizes), strict=True):
        states = (keys, values) if part.pages is None else _read(key_pages, value_pages, part.pages)
        if isinstance(part, DecodeGroup):
            parts.append(_decode(rows, *states, part, scaling))
        else:
            parts.append(_prefill(rows, *states, part, scaling))
    attended = torch.cat(parts) if len(parts) > 1 else parts[0]
    if plan.back is not None:
        attended = attended[plan.back]
    return attended.unsqueeze(0), None


def _plan(kwargs: dict[str, Any], pages: PageShape) -> StepPlan:
    """This step's plan; the first layer makes it. The step's own offsets tensor tells it from other steps."""
    offsets_q = kwargs["cu_seq_lens_q"]
    plan = _thread.plan
    if plan is None or plan.offsets_q is not offsets_q:
        offsets_k = next(iter(kwargs["cu_seq_lens_k"].values()))
        plan = _thread.plan = make_plan(offsets_q, offsets_k, kwargs["read_index"][0], pages)
    return plan


def _read(key_pages: torch.Tensor, value_pages: torch.Tensor, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies pages, [pages, page size, KV heads, width], side by side: [pages * page size, KV heads, width], twice.

    Into the same buffers in every layer and step: fresh memory of this size costs more in page faults than the
    copy does, and a buffer that stays in the processor's cache is read again for nothing.
    """
    count = len(pages)
    if _thread.keys is None or _thread.values is None or not _fits(_thread.keys, key_pages, count):
        _thread.keys = key_pages.new_empty((count, *key_pages.shape[1:]))
        _thread.values = torch.empty_like(_thread.keys)
    keys, values = _thread.keys[:count], _thread.values[:count]
    torch.index_select(key_pages, 0, pages, out=keys)
    torch.index_select(value_pages, 0, pages, out=values)
    return keys.flatten(0, 1), values.flatten(0, 1)


def _fits(buffer: torch.Tensor, pages: torch.Tensor, count: int) -> bool:
    return len(buffer) >= count and buffer.shape[1:] == pages.shape[1:] and buffer.dtype == pages.dtype


def _decode(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: DecodeGroup, scaling: float | None
) -> torch.Tensor:
    """[sequences, heads, width]. The heads that share a KV head stand where queries do: no key is repeated."""
    count, heads, width = queries.shape
    kv_heads = keys.shape[1]
    key, value = (states.view(count, -1, kv_heads, width)[:, : group.keys].transpose(1, 2) for states in (keys, values))
    query = queries.reshape(count, kv_heads, -1, width)
    attended = scaled_dot_product_attention(query, key, value, attn_mask=group.mask, scale=scaling)
    return attended.reshape(count, heads, width)


def _prefill(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, chunk: PrefillChunk, scaling: float | None
) -> torch.Tensor:
    """[queries, heads, width]. KV heads are the batch, so that sharing one among heads is an expand, not a copy."""
    count, heads, width = queries.shape
    kv_heads = keys.shape[1]
    query = queries.reshape(count, kv_heads, -1, width).permute(1, 2, 0, 3)
    key, value = (
        states[chunk.keys].transpose(0, 1).unsqueeze(1).expand(-1, heads // kv_heads, -1, -1)
        for states in (keys, values)
    )
    causal = chunk.mask is None
    attended = scaled_dot_product_attention(query, key, value, attn_mask=chunk.mask, is_causal=causal, scale=scaling)
    return attended.permute(2, 0, 1, 3).reshape(count, heads, width)
