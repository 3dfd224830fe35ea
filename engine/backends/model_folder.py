"""Reads what a model's folder says about itself: context length, vocabulary, end-of-sequence ids.

Never loads weights and never imports torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.types import ModelLimits


def read_limits(config: EngineConfig, folder: Path) -> ModelLimits:
    """The bounds that requests to this model are checked against. `ModelLoadError` where the folder tells none."""
    outer = _read(folder / "config.json")
    if not outer:
        raise ModelLoadError(f"model {folder}: config.json is missing or empty")
    text = outer.get("text_config") or outer
    context, vocabulary = text.get("max_position_embeddings"), text.get("vocab_size")
    if not isinstance(vocabulary, int):
        raise ModelLoadError(f"model {folder}: config.json does not say vocab_size")
    context = config.max_model_len if context is None else min(context, config.max_model_len or context)
    if context is None:
        raise ModelLoadError(
            f"model {folder}: config.json does not say max_position_embeddings; set engine.max_model_len"
        )
    generation = _read(folder / "generation_config.json")
    eos = _ids(outer) | _ids(text) | _ids(generation) | _tokenizer_eos(folder)
    return ModelLimits(context, vocabulary, frozenset(eos))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} can't be read: {error}") from error
    return content if isinstance(content, dict) else {}


def _ids(config: dict[str, Any]) -> set[int]:
    eos = config.get("eos_token_id")
    return {one for one in (eos if isinstance(eos, list) else [eos]) if isinstance(one, int)}


def _tokenizer_eos(folder: Path) -> set[int]:
    """The tokenizer's own end of sequence: a chat model's end of turn, which its other files may not name."""
    token = _read(folder / "tokenizer_config.json").get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    added = _read(folder / "tokenizer.json").get("added_tokens") or []
    return {one["id"] for one in added if one.get("content") == content}
