"""Makes a Llama-shaped model with random weights and the demo model's tokenizer, as a Hugging Face folder.

    python -m benchmarks.random_model FOLDER [--size 1b|tiny]

For speed only: what it says is noise. Never a download. `1b` takes 2.2 GB of disk and half a minute.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from engine.model import demo_model_folder

SEED = 1
SIZES: dict[str, dict[str, int | bool]] = {
    # TinyLlama's shape with SmolLM2's vocabulary: 1.07e9 parameters, embeddings shared.
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    # Heads of 64, the smallest that vLLM's CPU attention and its GPU kernels both take.
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
}


def make(folder: Path, size: str) -> int:
    """Writes the folder, bfloat16 safetensors, and returns the number of parameters."""
    demo = demo_model_folder()
    shape = LlamaConfig.from_pretrained(demo).to_dict() | SIZES[size]
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(LlamaConfig.from_dict(shape), dtype=torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    for file in demo.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    model.save_pretrained(folder)  # also the new config.json, over the demo's
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="1b")
    options = parser.parse_args()
    print(f"{options.folder}: {make(options.folder, options.size):,} parameters")


if __name__ == "__main__":
    main()
