"""A LoRA adapter for the demo model, made on the spot: PEFT's format, random weights that change what is said."""

from __future__ import annotations

import json
from pathlib import Path

RANK = 4
SCALE = 0.1
"""Of the weights' spread: enough to change greedy text from the first tokens on."""


def make_adapter(model: Path, folder: Path, seed: int) -> Path:
    """Written into the folder, which is made; other seeds are other adapters."""
    import numpy as np
    from safetensors.numpy import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    widths = {"q_proj": hidden, "v_proj": config["num_key_value_heads"] * hidden // heads}
    source = np.random.default_rng(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for module, width in widths.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in (("lora_A", (RANK, hidden)), ("lora_B", (width, RANK))):
                weights[f"{name}.{part}.weight"] = (SCALE * source.standard_normal(shape)).astype(np.float32)
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "r": RANK,
        "lora_alpha": 4 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(widths),
    }
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return folder
