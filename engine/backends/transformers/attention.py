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

from engine.backends.transformers.plan import CacheShape, DecodeGroup, StepPlan, make_plan


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
    cached_keys, cached_values = allocator.get_cache_for_block_table(module.layer_idx)
    write_index = kwargs["write_index"][0]
    cached_keys.flatten(0, 1).index_copy_(0, write_index, key[0].transpose(0, 1))
    cached_values.flatten(0, 1).index_copy_(0, write_index, value[0].transpose(0, 1))
    plan = _plan(kwargs, CacheShape(key.shape[1], key.shape[3], key.dtype))
    queries = query[0].transpose(0, 1)
    if plan.order is not None:
        queries = queries[plan.order]
    parts = []
    for part, rows in zip(plan.parts, queries.split(plan.sizes), strict=True):
        if part.index is None:
            own = slice(part.queries[0], part.queries[-1] + 1)
            states = key[:, :, own], value[:, :, own]
        else:
            sequences = len(rows) if isinstance(part, DecodeGroup) else 1
            states = _read(cached_keys, cached_values, part.index, sequences)
        parts.append((_decode if isinstance(part, DecodeGroup) else _prefill)(rows, *states, part.mask, scaling))
    attended = torch.cat(parts) if len(parts) > 1 else parts[0]
    if plan.back is not None:
        attended = attended[plan.back]
    return attended.unsqueeze(0), None


def _plan(kwargs: dict[str, Any], shape: CacheShape) -> StepPlan:
    """This step's plan; the first layer makes it. The step's own offsets tensor tells it from other steps."""
    offsets_q = kwargs["cu_seq_lens_q"]
    plan = _thread.plan
    if plan is None or plan.offsets_q is not offsets_q:
        offsets_k = next(iter(kwargs["cu_seq_lens_k"].values()))
        plan = _thread.plan = make_plan(offsets_q, offsets_k, kwargs["read_index"][0], shape)
    return plan


def _read(
    cached_keys: torch.Tensor, cached_values: torch.Tensor, index: torch.Tensor, sequences: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies what a part needs of the cache, [pages, page size, KV heads, width]: [sequences, KV heads, keys, width].

    Into the same buffers in every layer and step: fresh memory of this size costs more in page faults than the
    copy does, and a buffer that stays in the processor's cache is read again for nothing.
    """
    kv_heads, width = cached_keys.shape[2:]
    if _thread.keys is None or _thread.values is None or not _fits(_thread.keys, cached_keys, len(index)):
        _thread.keys = cached_keys.new_empty((len(index), width))
        _thread.values = torch.empty_like(_thread.keys)
    keys, values = _thread.keys[: len(index)], _thread.values[: len(index)]
    torch.index_select(cached_keys.flatten(0, 2), 0, index, out=keys)
    torch.index_select(cached_values.flatten(0, 2), 0, index, out=values)
    shape = (sequences, kv_heads, -1, width)
    return keys.view(shape), values.view(shape)


def _fits(buffer: torch.Tensor, cached: torch.Tensor, count: int) -> bool:
    return len(buffer) >= count and buffer.shape[-1] == cached.shape[-1] and buffer.dtype == cached.dtype


def _decode(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """[sequences, heads, width]. The heads that share a KV head stand where queries do: no key is repeated."""
    count, heads, width = queries.shape
    kv_heads = keys.shape[1]
    query = queries.reshape(count, kv_heads, -1, width)
    attended = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)
    return attended.reshape(count, heads, width)


def _prefill(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """[queries, heads, width]. KV heads are the batch, so that sharing one among heads is an expand, not a copy."""
    count, heads, width = queries.shape
    kv_heads = keys.shape[1]
    query = queries.reshape(count, kv_heads, -1, width).permute(1, 2, 0, 3)
    key, value = (states[0].unsqueeze(1).expand(-1, heads // kv_heads, -1, -1) for states in (keys, values))
    attended = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling)
    return attended.permute(2, 0, 1, 3).reshape(count, heads, width)
