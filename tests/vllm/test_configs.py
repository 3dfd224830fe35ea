"""The shipped configs for GPUs, as vLLM's own configuration objects: no key is wrong or without effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server.config import load_settings

CONFIGS = Path(__file__).parents[2] / "configs"
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}
"""Qwen3-8B's; Qwen3-32B has twice the heads."""


@pytest.fixture
def shape_alone(demo_model: Path, tmp_path: Path) -> Path:
    """A model's folder without weights."""
    for file in demo_model.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    shape = json.loads((demo_model / "config.json").read_text()) | SHAPE
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "length", "parallel"),
    [
        ("vllm-one-gpu", 16384, {"tensor_parallel_size": 1, "world_size": 1}),
        (
            "vllm-tensor-parallel",
            32768,
            {"tensor_parallel_size": 4, "world_size": 4, "distributed_executor_backend": "mp"},
        ),
    ],
)
def test_shipped_configs_are_vllms(name: str, length: int, parallel: dict[str, Any], shape_alone: Path) -> None:
    """What each says is what vLLM would run."""
    from engine.backends.vllm.arguments import engine_arguments
    from engine.backends.vllm.launch import engine_config

    settings = load_settings(CONFIGS / f"{name}.yaml", []).engine
    taken = engine_config(engine_arguments(settings, shape_alone))
    assert {key: getattr(taken.parallel_config, key) for key in parallel} == parallel
    assert taken.model_config.max_model_len == length
    assert taken.scheduler_config.max_num_seqs == settings.max_num_seqs
    assert taken.cache_config.enable_prefix_caching
    assert taken.cache_config.gpu_memory_utilization == settings.vllm["gpu_memory_utilization"]
