"""Tokenizers made on the spot, small enough to reason about: what each character becomes is known.

Never a trained one: the real vocabularies have their own tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.tokenizer import Tokenizer as OwnTokenizer
from engine.tokenizer import TokenizerSettings

SPECIAL = ("<|start|>", "<|end|>", "<s>", "</s>", "[INST]", "[/INST]")
WRITTEN = ("<think>", "</think>", "<|user|>", "\n\n")
"""Added tokens that are not special; what of them steers depends on what the template writes."""


def byte_level(normalizer: normalizers.Normalizer | None = None, *, normalized: bool = False) -> Tokenizer:
    """One id a byte, so that any text comes back exactly; then `SPECIAL` and `WRITTEN`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(content, special=True, normalized=normalized) for content in SPECIAL])
    backend.add_tokens([AddedToken(content, special=False, normalized=normalized) for content in WRITTEN])
    return backend


def unigram() -> Tokenizer:
    """A sentencepiece-like model whose own pieces spell `<s>` and `</s>`, and have an unknown token."""
    pieces = [("<unk>", 0.0), ("<s>", -1.0), ("</s>", -1.0), ("\u2581", -2.0), ("hi", -2.0)]
    pieces += [(character, -5.0) for character in "abcdefghijklmnopqrstuvwxyz<>/|\n"]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    backend.add_tokens([AddedToken(content, special=True, normalized=False) for content in ("<unk>", "<s>", "</s>")])
    return backend


def owned(
    backend: Tokenizer, template: str | None = None, names: Sequence[tuple[str, str]] = (("bos_token", "<s>"),)
) -> OwnTokenizer:
    """The engine's tokenizer around a backend."""
    templates = {} if template is None else {"default": template}
    return OwnTokenizer(backend, TokenizerSettings(dict(names), templates))
