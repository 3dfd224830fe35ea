"""Loads a model's weights and sizes its KV cache.

Never reads a request; what it chose by itself is logged.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig
from transformers.utils.logging import disable_progress_bar

from engine.backends.transformers.continuous import Manager
from engine.backends.transformers.run import SchedulerTotals
from engine.backends.transformers.scheduler import StepListener
from engine.config import EngineConfig
from engine.errors import ModelLoadError

logger = logging.getLogger(__name__)

CPU_PREFILL_TOKENS = 64
"""Prompt tokens of one step beside `max_num_seqs` decoding sequences, on a CPU. A long prompt is prefilled in
chunks, between which the others decode and aborts are seen: with 64 sequences a step takes half a second at most."""
GPU_PREFILL_TOKENS = 2048
CPU_CACHE_BYTES = 3 << 29
"""What the KV cache takes at most on a CPU unless told otherwise (1.5 GiB), one full context apart."""
TYPICAL_TOKENS = 1024
"""Tokens of a moderate conversation: the cache is sized for `max_num_seqs` of these."""


def load_manager(
    config: EngineConfig,
    folder: Path,
    context_length: int,
    listener: StepListener,
    totals: SchedulerTotals,
) -> Manager:
    """The model in memory with its KV cache, its thread not started. Takes seconds. `ModelLoadError`."""
    device = _device(config)
    try:
        disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=_dtype(config, device), attn_implementation="sdpa")
        model = model.to(device).eval()
        batching = _batching(config, model, context_length)
        return Manager(model, batching, listener, totals)
    except (OSError, ValueError, RuntimeError, MemoryError, ImportError) as error:
        raise ModelLoadError(f"model {folder} can't be loaded: {error}") from error


def _device(config: EngineConfig) -> torch.device:
    if config.device != "auto":
        return torch.device(config.device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    """`auto` is float32 on a CPU: in bfloat16 near-ties are common enough that a batch changes greedy text."""
    if config.dtype != "auto":
        dtype: torch.dtype = getattr(torch, config.dtype)
        return dtype
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def _batching(config: EngineConfig, model: Any, context_length: int) -> ContinuousBatchingConfig:
    on_cpu = model.device.type == "cpu"
    step_tokens = config.max_num_seqs + (CPU_PREFILL_TOKENS if on_cpu else GPU_PREFILL_TOKENS)
    blocks = config.num_kv_blocks
    if blocks is None and on_cpu:
        blocks = _cpu_blocks(config, model, context_length)
    logger.info(
        "model on %s in %s: %s KV blocks of %d tokens, at most %d sequences and %d tokens in a step",
        model.device,
        model.dtype,
        "as many as fit" if blocks is None else blocks,
        config.block_size,
        config.max_num_seqs,
        step_tokens,
    )
    return ContinuousBatchingConfig(
        page_size=config.block_size,
        num_blocks=blocks,
        max_batch_tokens=step_tokens,
        max_requests_per_batch=config.max_num_seqs,
        max_blocks_per_request=0,
        use_cuda_graph=False,
        use_async_batching=False,
        auto_switch_to_flash=False,
    )


def _cpu_blocks(config: EngineConfig, model: Any, context_length: int) -> int:
    """Blocks for `max_num_seqs` moderate conversations within `CPU_CACHE_BYTES`, and for one full context at least."""
    text = model.config.get_text_config()
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    block_bytes = 2 * text.num_hidden_layers * kv_heads * width * model.dtype.itemsize * config.block_size
    wanted = -(-TYPICAL_TOKENS // config.block_size) * config.max_num_seqs
    one_context = -(-context_length // config.block_size) + 1
    return int(max(one_context, min(wanted, CPU_CACHE_BYTES // block_bytes)))
