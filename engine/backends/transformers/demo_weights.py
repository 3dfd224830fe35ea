"""Dequantizes the demo model's GGUF file into Hugging Face's layout, through transformers' own GGUF reader.

Never decides where the result lives, and runs only once for each cache folder: `engine.model` calls it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.errors import ModelLoadError


def dequantize(package: Path, weights: str, folder: Path) -> None:
    """Reads `package/weights` and writes float32 safetensors, tokenizer and chat template to `folder`.

    Takes about 25 s on two cores, with the reader's progress bar on stderr.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(package, gguf_file=weights, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=weights)
    except ImportError as error:
        raise ModelLoadError(
            f"reading the demo model's weights needs the packages gguf and accelerate: {error}"
        ) from error
    # The weights are plain floats by now; a model that still says it is quantized refuses to be saved.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
