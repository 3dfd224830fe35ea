"""What a tokenizer says about its ids: tokens, special ids, decoder; read from a tokenizer file or object.

Never decodes anything: that is the chain's work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from engine.detokenizer.chain import Config
from engine.detokenizer.stages import Token
from engine.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Ids and what they stand for."""

    tokens: Mapping[int, Token]
    special_ids: frozenset[int]
    decoder: Config | None
    """The `decoder` entry of a tokenizer file; None: the library joins tokens with spaces."""


class _Added(msgspec.Struct):
    content: str
    special: bool = False
    normalized: bool = True
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _File(msgspec.Struct):
    """The parts of a tokenizer file that decoding needs; merges and the rest are skipped unread."""

    model: _Model
    added_tokens: list[_Added] = []
    normalizer: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None


def read_tokenizer_file(path: Path) -> TokenTable:
    """Reads a `tokenizer.json`. Raises `ModelLoadError` where it is none."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelLoadError(f"{path} is no tokenizer file: {error}") from error
    vocab = file.model.vocab
    ids = vocab if isinstance(vocab, dict) else {piece[0]: rank for rank, piece in enumerate(vocab)}
    tokens: dict[int, Token] = {token_id: token for token, token_id in ids.items()}
    if isinstance(vocab, list):
        tokens.update(enumerate(piece[0] for piece in vocab))
    added = _place_added(ids, len(vocab), file.added_tokens)
    tokens.update({token_id: token.content for token_id, token in added.items()})
    if file.normalizer is not None:
        tokens.update(_normalized_added(added, file.normalizer))
    return TokenTable(tokens, _special_ids(tokens, added), file.decoder)


def read_tokenizer(tokenizer: Tokenizer) -> TokenTable:
    """Reads a `tokenizers.Tokenizer`; tokens added to it later are not seen."""
    ids = tokenizer.get_vocab(with_added_tokens=False)
    tokens: dict[int, Token] = {token_id: token for token, token_id in ids.items()}
    if len(tokens) <= max(tokens, default=-1):  # a piece that comes twice is listed once
        tokens.update(_unlisted(tokenizer, tokens))
    added = {
        token_id: _Added(token.content, token.special, token.normalized)
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
    }
    tokens.update({token_id: token.content for token_id, token in added.items()})
    if tokenizer.normalizer is not None:
        tokens.update(_normalized_added(added, json.loads(tokenizer.normalizer.__getstate__())))
    return TokenTable(tokens, _special_ids(tokens, added), _decoder_config(tokenizer))


def _unlisted(tokenizer: Tokenizer, listed: Mapping[int, Token]) -> dict[int, Token]:
    missing = [token_id for token_id in range(max(listed)) if token_id not in listed]
    found = [(token_id, tokenizer.id_to_token(token_id)) for token_id in missing]
    return {token_id: token for token_id, token in found if token is not None}


def _decoder_config(tokenizer: Tokenizer) -> Config | None:
    if tokenizer.decoder is None:
        return None
    try:
        config: Config = json.loads(tokenizer.decoder.__getstate__())
    except Exception:  # noqa: BLE001 - what the library raises for a decoder written in Python
        return {"type": "written in Python"}
    return config


def _place_added(ids: Mapping[str, int], size: int, added: Sequence[_Added]) -> dict[int, _Added]:
    """Added tokens by id, as the library places them: over the model's own of the same text, else after its last."""
    new = dict.fromkeys(token.content for token in added if token.content and token.content not in ids)
    placed = {content: size + rank for rank, content in enumerate(new)}
    return {placed.get(token.content, ids.get(token.content, -1)): token for token in added if token.content}


def _special_ids(tokens: Mapping[int, Token], added: Mapping[int, _Added]) -> frozenset[int]:
    """Ids that are skipped. The library goes by a token's text: also of the model's own, and as it was normalized."""
    specials = {token.content for token in added.values() if token.special}
    return frozenset(token_id for token_id, token in tokens.items() if token in specials)


def _normalized_added(added: Mapping[int, _Added], normalizer: Mapping[str, Any]) -> dict[int, Token]:
    """How the library writes added tokens that it normalizes; only it knows its normalizers."""
    wanted = {token_id: token for token_id, token in added.items() if token.normalized}
    if not wanted:
        return {}
    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    file = {"version": "1.0", "added_tokens": [], "model": model, "normalizer": normalizer}
    bare = Tokenizer.from_str(json.dumps(file))
    bare.add_tokens([AddedToken(token.content, normalized=True) for token in wanted.values()])
    return {token_id: bare.decode([rank], skip_special_tokens=False) for rank, token_id in enumerate(wanted)}
