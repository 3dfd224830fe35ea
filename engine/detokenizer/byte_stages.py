"""The stages that treat bytes: byte-level alphabets, byte-fallback tokens, raw bytes.

Never holds more than an incomplete character, at most 3 bytes.
"""

from __future__ import annotations

import re
from typing import Final

from engine.detokenizer.stages import Stage, State, Token, text_of
from engine.detokenizer.utf8 import decode_complete, decode_rest


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's way of writing a byte as one printable character: printable Latin-1 as itself, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


BYTE_ALPHABET: Final = _byte_alphabet()
SPACE_MARK: Final = "▁"
_BYTE_TOKEN: Final = re.compile(r"<0x(?:([0-9A-Fa-f]{2})|\+([0-9A-Fa-f]))>", re.ASCII)
"""The second form is no byte that anyone writes, but the library's number parser takes it."""


class RawBytes(Stage):
    """Tokens are bytes, or text standing for its UTF-8. State: the bytes of an incomplete character."""

    initial = b""
    middle = b""
    tail = 4

    def step(self, state: State, token: Token) -> tuple[State, list[Token]]:
        text, held = decode_complete(state + self._bytes(token))
        return held, [text]

    def finish(self, state: State) -> list[Token]:
        return [decode_rest(state)]

    def piece(self, token: Token) -> Token:
        return self._bytes(token)

    def _bytes(self, token: Token) -> bytes:
        return token if isinstance(token, bytes) else token.encode()

    def holds_bytes(self, state: State) -> bool:
        return bool(state)


class ByteLevel(RawBytes):
    """`ByteLevel`: a token wholly in the byte alphabet stands for bytes, any other for its own UTF-8."""

    def _bytes(self, token: Token) -> bytes:
        text = text_of(token)
        try:
            return bytes(map(BYTE_ALPHABET.__getitem__, text))
        except KeyError:
            return text.encode()


class ByteFallback(RawBytes):
    """`ByteFallback`: `<0xE2>` stands for a byte, a run of such tokens for a text. State: an incomplete character.

    A run that is not valid UTF-8 is decoded byte-wise, so that text which was sent is never revised; the library turns
    every byte of such a run into U+FFFD.
    """

    splits = True

    def step(self, state: State, token: Token) -> tuple[State, list[Token]]:
        piece = self.piece(token)
        if isinstance(piece, str):
            return b"", [decode_rest(state), piece] if state else [piece]
        text, held = decode_complete(state + piece)
        return held, [text] if text else []

    def piece(self, token: Token) -> Token:
        text = text_of(token)
        match = _BYTE_TOKEN.fullmatch(text) if text.startswith("<0x") else None
        return text if match is None else bytes([int(match[1] or match[2], 16)])


class SentencePieces(Stage):
    """SentencePiece's own decoding. State: (whether the text has begun, an incomplete character's bytes).

    `drops_space`: a space mark that begins the text is dropped; `keeps_dropping`: so for each piece until text appears.
    """

    initial = (False, b"")
    middle = (True, b"")
    tail = 4

    def __init__(self, drops_space: bool, keeps_dropping: bool) -> None:
        self._drops_space = drops_space
        self._keeps_dropping = keeps_dropping

    def step(self, state: State, token: Token) -> tuple[State, list[Token]]:
        begun, held = state
        if isinstance(token, bytes):
            text, held = decode_complete(held + token)
            return (True, held), [text]
        text = token
        if not begun and self._drops_space:
            text = token.removeprefix(SPACE_MARK)
            begun = bool(text) or (text != token and not self._keeps_dropping)
        return (begun or bool(text), b""), [decode_rest(held), text.replace(SPACE_MARK, " ")]

    def finish(self, state: State) -> list[Token]:
        return [decode_rest(state[1])]

    def piece(self, token: Token) -> Token:
        return token if isinstance(token, bytes) else token.replace(SPACE_MARK, " ")

    def settled(self, state: State) -> bool:
        return bool(state[0])

    def holds_bytes(self, state: State) -> bool:
        return bool(state[1])
