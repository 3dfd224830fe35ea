"""vLLM's arguments in the config: checked by name and type, and taken into vLLM's own configuration objects."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError

EAGER = {"enforce_eager": True}


def arguments(folder: Path, vllm: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """VLLM is imported by the test, not by the file, which every run collects."""
    from engine.backends.vllm.arguments import engine_arguments

    return engine_arguments(EngineConfig(kind="vllm", vllm=vllm, **settings), folder)


def config(folder: Path, vllm: dict[str, Any]) -> Any:
    """VLLM's own configuration object."""
    from engine.backends.vllm.launch import engine_config

    return engine_config(arguments(folder, EAGER | vllm))


@pytest.mark.parametrize(
    ("vllm", "message"),
    [
        ({"tensor_paralel_size": 2}, "did you mean engine.vllm.tensor_parallel_size?"),
        ({"tensor_parallel_size": "two"}, "engine.vllm.tensor_parallel_size: .*integer"),
        ({"_api_process_count": 2}, "is no argument of vLLM's engine"),
        ({"compilation_config": {"modde": 0}}, "engine.vllm.compilation_config"),
        ({"model": "other"}, "engine.vllm.model can't be set: it is engine.model"),
        ({"scheduler_cls": "other.Scheduler"}, "engine.vllm.scheduler_cls can't be set"),
        ({"max_num_seqs": 4}, r"engine.max_num_seqs and engine.vllm.max_num_seqs disagree: 3, 4"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, vllm: dict[str, Any], message: str) -> None:
    """Before anything is loaded, with the key and, for a wrong one, the nearest."""
    with pytest.raises(ConfigError, match=message):
        arguments(tmp_path, vllm, max_num_seqs=3)


def test_every_argument_is_known(tmp_path: Path) -> None:
    """The default of each, said in the config, is taken; only those that the server decides are not."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    from engine.backends.vllm.arguments import TAKEN

    known = {field.name: field for field in fields(AsyncEngineArgs) if not field.name.startswith("_")}
    assert TAKEN.keys() <= known.keys()
    wrongly_typed = {"max_model_len", "elastic_ep_max_dp_size", "enable_flashinfer_autotune", "reasoning_config"}
    for name in known.keys() - TAKEN.keys():
        factory = known[name].default_factory
        default = known[name].default if factory is MISSING else factory()
        if default is None and name in wrongly_typed:
            continue
        assert arguments(tmp_path, {name: default})[name] == default


def test_our_settings_are_theirs(tmp_path: Path) -> None:
    """Those that were given go under vLLM's names, those that were not are vLLM's own choice."""
    settings = {"max_num_seqs": 3, "max_model_len": 512, "block_size": 16, "dtype": "bfloat16", "num_kv_blocks": 40}
    given = arguments(tmp_path, {}, **settings)
    expected = {"max_num_seqs": 3, "max_model_len": 512, "block_size": 16, "dtype": "bfloat16"}
    assert expected.items() <= given.items()
    assert given["num_gpu_blocks_override"] == 41  # one is a placeholder
    assert not {"block_size", "max_model_len"} & arguments(tmp_path, {}).keys()
    assert arguments(tmp_path, {"max_num_seqs": 5})["max_num_seqs"] == 5


@pytest.mark.parametrize(
    ("vllm", "expected"),
    [
        ({"tensor_parallel_size": 3}, {"tensor_parallel_size": 3, "world_size": 3}),
        ({"pipeline_parallel_size": 2}, {"pipeline_parallel_size": 2, "world_size": 2}),
        (
            {"tensor_parallel_size": 3, "pipeline_parallel_size": 2, "distributed_executor_backend": "ray"},
            {"distributed_executor_backend": "ray", "world_size": 6},
        ),
        (
            {"tensor_parallel_size": 3, "nnodes": 3, "node_rank": 0, "master_addr": "10.0.0.1", "master_port": 29501},
            {"nnodes": 3, "node_rank": 0, "master_addr": "10.0.0.1", "world_size": 3},
        ),
        (
            {"data_parallel_size": 4, "data_parallel_size_local": 2, "data_parallel_address": "10.0.0.1"},
            {"data_parallel_size": 4, "data_parallel_size_local": 2, "data_parallel_master_ip": "10.0.0.1"},
        ),
    ],
)
def test_parallel_engines(demo_model: Path, vllm: dict[str, Any], expected: dict[str, Any]) -> None:
    """Tensor, pipeline and data parallelism, Ray and several nodes, as vLLM understands them."""
    parallel = config(demo_model, vllm).parallel_config
    assert {name: getattr(parallel, name) for name in expected} == expected


def test_expert_parallel_engines(demo_model: Path, tmp_path: Path) -> None:
    """For a model that has experts."""
    for file in demo_model.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    dense = json.loads((demo_model / "config.json").read_text())
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    moe = dense | experts | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    (tmp_path / "config.json").write_text(json.dumps(moe))
    parallel = config(tmp_path, {"data_parallel_size": 2, "enable_expert_parallel": True}).parallel_config
    assert parallel.enable_expert_parallel
    assert parallel.data_parallel_size == 2


def test_what_else_is_passed_through(demo_model: Path) -> None:
    """Speculation, adapters, caches and scheduling reach vLLM's configuration; its scheduler is the telling one."""
    speculative = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    taken = config(
        demo_model,
        {
            "speculative_config": speculative,
            "enable_lora": True,
            "max_lora_rank": 32,
            "enable_prefix_caching": False,
            "enable_chunked_prefill": True,
            "kv_cache_dtype": "fp8",
            "scheduling_policy": "priority",
        },
    )
    assert (taken.speculative_config.method, taken.speculative_config.num_speculative_tokens) == ("ngram", 4)
    assert taken.lora_config.max_lora_rank == 32
    assert not taken.cache_config.enable_prefix_caching
    assert taken.cache_config.cache_dtype == "fp8"
    assert taken.scheduler_config.policy == "priority"
    assert taken.scheduler_config.get_scheduler_cls().__name__ == "TellingScheduler"


def test_quantization(demo_model: Path) -> None:
    """Weights are quantized while they load, in the types that vLLM can."""
    from engine.backends.vllm.launch import engine_config

    quantized = arguments(demo_model, EAGER | {"quantization": "fp8"}, dtype="bfloat16")
    assert engine_config(quantized).model_config.quantization == "fp8"


def test_what_vllm_refuses_is_the_operators_to_mend(demo_model: Path) -> None:
    """One line, in vLLM's words."""
    with pytest.raises(ConfigError, match=r"attention heads .* must be divisible by tensor parallel size") as refused:
        config(demo_model, {"tensor_parallel_size": 4})
    assert "\n" not in str(refused.value)
