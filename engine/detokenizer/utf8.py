"""Incremental UTF-8: which bytes are text already, and which may still become a character.

Never holds more than 3 bytes, and never waits for bytes that can't become valid.
"""

from __future__ import annotations

from codecs import utf_8_decode

REPLACEMENT = "\ufffd"


def decode_complete(data: bytes) -> tuple[str, bytes]:
    """Decodes all of `data` but an incomplete last character: (text, held bytes).

    Invalid bytes become U+FFFD by the maximal-subpart rule (Unicode 16, section 3.9), the same as in
    `bytes.decode(errors="replace")`, and as soon as it is certain that they are invalid.
    """
    text, used = utf_8_decode(data, "replace", False)
    held = data[used:]
    # CPython also waits for the third byte of an encoded surrogate (for "surrogatepass"), which can't become valid.
    if len(held) == 2 and held[0] == 0xED and held[1] >= 0xA0:
        return text + REPLACEMENT * 2, b""
    return text, held


def decode_rest(held: bytes) -> str:
    """What held bytes are worth when no more will come: one U+FFFD for an incomplete character, else nothing."""
    return held.decode("utf-8", "replace")
