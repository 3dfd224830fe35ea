"""Vocabularies in files of other makers: SentencePiece models, tekken (mistral-common) and tiktoken files.

Never needs the makers' libraries.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from engine.detokenizer.byte_stages import RawBytes, SentencePieces
from engine.detokenizer.chain import Chain
from engine.detokenizer.stages import Token
from engine.detokenizer.token_table import TokenTable
from engine.errors import ModelLoadError

_OLD_TEKKEN_SPECIALS: Final = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""What the first special ids mean in tekken files that do not list them."""
_UNKNOWN, _CONTROL, _BYTE = 2, 3, 6
"""Types of SentencePiece's pieces (sentencepiece_model.proto)."""


class _TekkenToken(msgspec.Struct):
    rank: int
    token_bytes: bytes


class _TekkenSpecial(msgspec.Struct):
    rank: int
    token_str: str


class _TekkenConfig(msgspec.Struct):
    default_vocab_size: int
    default_num_special_tokens: int


class _Tekken(msgspec.Struct):
    config: _TekkenConfig
    vocab: list[_TekkenToken]
    special_tokens: list[_TekkenSpecial] | None = None


def read_tekken_file(path: Path) -> tuple[TokenTable, Chain]:
    """Special ids come first, then the tokens by rank, as many as the file's vocabulary size leaves room for."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_Tekken)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelLoadError(f"{path} is no tekken file: {error}") from error
    special_count, size = file.config.default_num_special_tokens, file.config.default_vocab_size
    tokens: dict[int, Token] = {rank: f"<SPECIAL_{rank}>" for rank in range(special_count)}
    tokens.update(enumerate(_OLD_TEKKEN_SPECIALS) if file.special_tokens is None else ())
    tokens.update((special.rank, special.token_str) for special in file.special_tokens or ())
    ordinary = ((special_count + token.rank, token.token_bytes) for token in file.vocab)
    tokens.update((token_id, token) for token_id, token in ordinary if token_id < size)
    return TokenTable(tokens, frozenset(range(special_count)), None), Chain([RawBytes()])


def read_tiktoken_file(path: Path, special_tokens: Mapping[str, int]) -> tuple[TokenTable, Chain]:
    """Lines of base64 and rank; such files do not tell their special tokens."""
    tokens: dict[int, Token] = {}
    try:
        for line in path.read_bytes().splitlines():
            encoded, rank = line.split()
            tokens[int(rank)] = base64.b64decode(encoded, validate=True)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} is no tiktoken file: {error}") from error
    if not tokens:
        raise ModelLoadError(f"{path} is no tiktoken file: it is empty")
    tokens.update({token_id: token for token, token_id in special_tokens.items()})
    return TokenTable(tokens, frozenset(special_tokens.values()), None), Chain([RawBytes()])


def read_sentencepiece_file(path: Path) -> tuple[TokenTable, Chain]:
    """A SentencePiece model. Control pieces are its special tokens; an unknown one has the model's surface for it."""
    try:
        model = list(_fields(path.read_bytes()))
        pieces = [dict(_fields(_message(value))) for number, value in model if number == 1]
        trainer, normalizer, denormalizer = (_submessage(model, number) for number in (2, 3, 5))
        unknown = _message(trainer.get(44, " ⁇ ".encode())).decode()
        tokens = {token_id: _piece(piece, unknown) for token_id, piece in enumerate(pieces)}
    except (OSError, IndexError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{path} is no SentencePiece model: {error!r}") from error
    if not tokens or trainer.get(24) or denormalizer.get(2):
        raise ModelLoadError(f"{path}: no pieces, or spaces as suffixes, or a denormalizer, which are not supported")
    drops_space, keeps_dropping = bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1))
    control = frozenset(token_id for token_id, piece in enumerate(pieces) if piece.get(3) == _CONTROL)
    return TokenTable(tokens, control, None), Chain([SentencePieces(drops_space or keeps_dropping, keeps_dropping)])


def _piece(piece: Mapping[int, int | bytes], unknown: str) -> Token:
    text, kind = _message(piece[1]).decode(), piece.get(3)
    if kind == _BYTE:
        return bytes([int(text[3:5], 16)])
    return unknown if kind == _UNKNOWN else text


def _submessage(model: list[tuple[int, int | bytes]], number: int) -> dict[int, int | bytes]:
    return dict(_fields(_message(dict(model).get(number, b""))))


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError("a number where a message should be")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer message: number and value (protobuf.dev/programming-guides/encoding)."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        length, at = _varint(data, at) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], at)
        if at + length > len(data):
            raise ValueError("the message ends early")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
