"""Turns the engine's settings into vLLM's engine arguments, checked by name and by type before anything is loaded.

Never starts anything. Settings of ours that were not given are left to vLLM's own defaults, but for those in
`cpu_defaults`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import psutil
from pydantic import ConfigDict, ValidationError, create_model
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from engine.config import EngineConfig
from engine.errors import ConfigError

SHARED = {
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_size",
    "dtype": "dtype",
    "num_kv_blocks": "num_gpu_blocks_override",
}
"""Settings under `engine.` and what vLLM calls them."""
TAKEN = {
    "model": "it is engine.model",
    "tokenizer": "it is the model's own, which the server reads too",
    "skip_tokenizer_init": "vLLM checks token ids with its tokenizer",
    "served_model_name": "it is engine.served_model_name",
    "disable_log_stats": "the server's figures come from vLLM's scheduler",
    "scheduler_cls": "the server brings its own, which tells when sequences begin and are gone",
    "logging_config": "vLLM's records go through the server's log",
    "log_level": "vLLM's records go through the server's log",
    "log_config_file": "vLLM's records go through the server's log",
    "runner": "this server generates text",
}
"""vLLM's arguments that are no setting here, and why."""
NULL_BLOCKS = 1
"""Of vLLM's blocks one is a placeholder that holds nothing."""
CPU_PREFILL_TOKENS = 64
"""Prompt tokens of one step on a CPU, beside `max_num_seqs` decoding sequences."""
MOST_ADAPTERS = 32
"""Adapters that are loaded at a time unless `max_cpu_loras` says otherwise: with vLLM's default of one it would read
them from disk again in mid-generation, where a folder that is gone ends the engine."""
CPU_CACHE_SHARE = 4
"""On a CPU the KV cache takes this part of the free memory unless told otherwise: one in so many."""


def engine_arguments(config: EngineConfig, folder: Path) -> dict[str, Any]:
    """Keyword arguments of vLLM's `AsyncEngineArgs`. `ConfigError` names the key, and for a wrong one the nearest."""
    arguments = _checked(config.vllm)
    for ours, theirs in SHARED.items():
        value = _setting(config, ours)
        if value is None:
            continue
        if arguments.get(theirs, value) != value:
            raise ConfigError(f"engine.{ours} and engine.vllm.{theirs} disagree: {value!r}, {arguments[theirs]!r}")
        arguments[theirs] = value
    if current_platform.is_cpu():
        arguments = cpu_defaults(arguments.get("max_num_seqs") or config.max_num_seqs, _guesses(arguments)) | arguments
    if config.lora_modules and not arguments.setdefault("enable_lora", True):
        raise ConfigError("engine.lora_modules and engine.vllm.enable_lora disagree: adapters need it to be true")
    if arguments.get("enable_lora"):
        arguments.setdefault("max_cpu_loras", max(MOST_ADAPTERS, arguments.get("max_loras") or 1))
    return {"use_tqdm_on_load": False} | arguments | {"model": str(folder)}


def cpu_defaults(max_num_seqs: int, guesses: int) -> dict[str, Any]:
    """What suits a machine without GPU better than the library's own defaults.

    Those would take nine tenths of the memory, compile for minutes, prefill for many seconds in one step, in which
    nothing else goes on and no abort is seen, compute in bfloat16, whose near ties change greedy text, and end on the
    first seeded prompt of several steps. `guesses`: tokens that speculation adds to each sequence's step.
    """
    return {
        "dtype": "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": psutil.virtual_memory().available // CPU_CACHE_SHARE,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs * (1 + guesses) + CPU_PREFILL_TOKENS,
        "worker_cls": "engine.backends.vllm.cpu_worker.SeededCPUWorker",
    }


def _guesses(arguments: dict[str, Any]) -> int:
    speculation = arguments.get("speculative_config") or {}
    return int(speculation.get("num_speculative_tokens") or arguments.get("spec_tokens") or 0)


def _setting(config: EngineConfig, name: str) -> Any:
    """The value of a setting that was given; None where the default stands or it says so itself."""
    value = getattr(config, name)
    if name not in config.model_fields_set or value in (None, "auto"):
        return None
    return value + NULL_BLOCKS if name == "num_kv_blocks" else value


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """The same arguments with the types that vLLM wants."""
    known = {field.name: _kind(field) for field in fields(AsyncEngineArgs) if not field.name.startswith("_")}
    for name in given:
        if name not in known or name in TAKEN:
            raise ConfigError(f"engine.vllm.{name} {_why_not(name, known)}")
    types: dict[str, Any] = {name: (known[name], ...) for name in given}
    lenient = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=(), use_attribute_docstrings=False)
    try:
        valid = create_model("VllmArguments", __config__=lenient, **types).model_validate(given)
    except ValidationError as error:
        faults = [
            f"engine.vllm.{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in error.errors(include_url=False)
        ]
        raise ConfigError("; ".join(dict.fromkeys(faults))) from None
    return {name: getattr(valid, name) for name in given}


def _kind(field: Field[Any]) -> Any:
    """Its type; one given as text names what is imported for type checkers only: vLLM itself checks the value."""
    kind: Any = Any if isinstance(field.type, str) else field.type
    return kind | None if field.default is None and kind is not Any else kind


def _why_not(name: str, known: Iterable[str]) -> str:
    if name in TAKEN:
        return f"can't be set: {TAKEN[name]}"
    near = difflib.get_close_matches(name, set(known) - TAKEN.keys(), n=1, cutoff=0.6)
    return "is no argument of vLLM's engine" + (f"; did you mean engine.vllm.{near[0]}?" if near else "")
