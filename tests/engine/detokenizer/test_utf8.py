"""What is held of a byte string is exactly what may still become a character."""

from __future__ import annotations

import itertools

import pytest

from engine.detokenizer.utf8 import decode_complete, decode_rest

EDGES = bytes.fromhex("00 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")
PREFIXES = {
    character.encode()[:length]
    for character in map(chr, itertools.chain(range(0x80, 0xD800), range(0xE000, 0x110000, 64)))
    for length in range(1, len(character.encode()))
}
"""Every proper prefix of a character's bytes; beyond U+E000 the last byte alone varies within 64."""


def strings() -> list[bytes]:
    pairs = [bytes(pair) for pair in itertools.product(range(256), repeat=2)]
    return [*pairs, *(bytes(string) for length in (1, 3, 4) for string in itertools.product(EDGES, repeat=length))]


def check(data: bytes) -> None:
    text, held = decode_complete(data)
    assert data.endswith(held)
    assert not held or held in PREFIXES
    assert text + decode_rest(held) == data.decode(errors="replace")
    longest = next((data[-length:] for length in (3, 2, 1) if data[-length:] in PREFIXES), b"")
    assert held == longest


def test_held_is_what_may_become_a_character() -> None:
    """Held bytes are the longest tail that is a proper prefix of a character, and nothing else delays text."""
    for data in strings():
        check(data)


@pytest.mark.parametrize("held", sorted(PREFIXES)[::997], ids=bytes.hex)
def test_rest_is_one_replacement(held: bytes) -> None:
    """An incomplete character at the end is worth exactly one U+FFFD."""
    assert decode_rest(held) == "\ufffd"
