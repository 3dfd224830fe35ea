"""Reading JSON by position: where a string or a value ends, whatever it is cut into.

Never parsed, never repaired: brackets and strings are counted, and what is between them passes as it is. A value that
is no JSON, such as Python's, ends where its brackets close.
"""

from __future__ import annotations

import json
import re
from typing import Final

from engine.output.parsers.scanner import Scanner, Wait

_STRING: Final = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_IN_BRACKETS: Final = re.compile(r'[^"{}\[\]<]*+')
_SCALAR: Final = re.compile(r"[^\s\",:{}\[\]<]*+")


def read_string(scan: Scanner) -> Wait[bool]:
    """Reads a string, whose opening quote comes next; False where the text ends in it."""
    scan.at += 1
    while True:
        yield from scan.run(_STRING)
        character = yield from scan.peek()
        if not character:
            return False
        scan.at += 1
        if character == '"':
            return True
        # A backslash on the edge of a piece: what follows is of the string, whatever it is.
        if not (yield from scan.peek()):
            return False
        scan.at += 1


def read_value(scan: Scanner, closes: tuple[str, ...]) -> Wait[bool]:
    """Reads a value; False where it is not complete: the text ends, or one of `closes` comes outside of strings."""
    depth = 0
    while True:
        character = yield from scan.peek()
        if not character or (character == "<" and (yield from scan.ahead(*closes))):
            return False
        if character == '"':
            if not (yield from read_string(scan)):
                return False
        elif character in "{[":
            depth += 1
            scan.at += 1
        elif depth == 0:
            yield from scan.run(_SCALAR)
        elif character in "}]<":
            depth -= character != "<"
            scan.at += 1
        else:
            yield from scan.run(_IN_BRACKETS)
        if depth == 0:
            return True


def decoded_string(literal: str) -> str | None:
    """The text of a JSON string; None where it is none, or no text that can be sent (half a surrogate pair)."""
    try:
        text = json.loads(literal, strict=False)
        text.encode()
    except ValueError:
        return None
    return str(text)


def escaped(text: str) -> str:
    """Text as it is within a JSON string; of a joined text, the joined escapes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
