"""Python literals to JSON as they come: strings, numbers, True, False, None, lists, tuples and dictionaries.

Never evaluated. A word that is none of these is a string of itself; a tuple is an array.
"""

from __future__ import annotations

import math
import re
import string
import sys
from typing import Final

from engine.output.parsers.json_text import escaped
from engine.output.parsers.parts import Part, ToolCallArguments
from engine.output.parsers.scanner import LONGEST_PIECE, SPACE, Scanner, Wait

MAX_NESTING: Final = 100
_WORD: Final = re.compile(r"[^\s,()\[\]{}:='\"]*+")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}
_QUOTES: Final = ("'''", '"""', "'", '"')
_IN_QUOTES: Final = {"'": re.compile(r"[^'\\]*+"), '"': re.compile(r'[^"\\]*+')}
_ESCAPES: Final = dict(zip("\n\\'\"abfnrtv", ["", *map(escaped, "\\'\"\a\b\f\n\r\t\v")], strict=True))
"""A character after a backslash: what JSON writes for the two."""
_OCTAL: Final = "01234567"
_DIGITS: Final = {"x": 2, "u": 4, "U": 8}


def read_literal(scan: Scanner, depth: int = 0) -> Wait[bool]:
    """Makes the open call's arguments of the literal that comes next; False where none comes or it is not whole."""
    yield from scan.run(SPACE)
    scan.drop()
    quotes = yield from scan.read(*_QUOTES)
    if quotes:
        return (yield from _read_string(scan, quotes))
    opening = yield from scan.read(*_CLOSING)
    if opening:
        return depth < MAX_NESTING and (yield from _read_elements(scan, opening, depth + 1))
    word = yield from scan.word(_WORD)
    scan.drop()
    scan.arguments(_json_of_word(word))
    return bool(word)


def json_of_literal(text: str) -> str | None:
    """The JSON of a whole literal; None where the text is none."""
    scan = Scanner()
    reading = read_literal(scan)
    parts: list[Part] = []
    try:
        for start in range(0, len(text) or 1, LONGEST_PIECE):
            scan.text += text[start : start + LONGEST_PIECE]
            scan.ended = start + LONGEST_PIECE >= len(text)
            next(reading)
            parts += scan.take_parts()
    except StopIteration as end:
        if not end.value or not scan.ended or scan.text:
            return None
    parts += scan.take_parts()
    return "".join(part.text for part in parts if isinstance(part, ToolCallArguments))


def _read_elements(scan: Scanner, opening: str, depth: int) -> Wait[bool]:
    keyed = opening == "{"
    scan.drop()
    scan.arguments("{" if keyed else "[")
    separator, comma = "", "first"
    while True:
        yield from scan.run(SPACE)
        if (yield from scan.read(_CLOSING[opening])):
            scan.drop()
            scan.arguments("}" if keyed else "]")
            return True
        if not comma or not (yield from scan.peek()):
            return False
        scan.arguments(separator)
        if (keyed and not (yield from _read_key(scan))) or not (yield from read_literal(scan, depth)):
            return False
        yield from scan.run(SPACE)
        separator, comma = ", ", (yield from scan.read(","))


def _read_key(scan: Scanner) -> Wait[bool]:
    scan.drop()
    quotes = yield from scan.read(*_QUOTES)
    if quotes:
        whole = yield from _read_string(scan, quotes)
    else:
        word = yield from scan.word(_WORD)
        scan.arguments(f'"{escaped(word)}"')
        whole = bool(word)
    yield from scan.run(SPACE)
    if not whole or not (yield from scan.read(":")):
        return False
    scan.arguments(": ")
    return True


def _read_string(scan: Scanner, quotes: str) -> Wait[bool]:
    scan.drop()
    scan.arguments('"')
    while True:
        scan.forward = lambda raw: scan.argument_text(escaped(raw))
        yield from scan.run(_IN_QUOTES[quotes[0]])
        scan.pass_on()
        scan.forward = None
        character = yield from scan.peek()
        if not character:
            return False
        if character == "\\":
            yield from _read_escape(scan)
        elif (yield from scan.read(quotes)):
            scan.drop()
            scan.arguments('"')
            return True
        else:
            scan.at += 1
            scan.arguments(escaped(character))
            scan.drop()


def _read_escape(scan: Scanner) -> Wait[None]:
    """One that Python does not know stays as it is, and so does the kind that names a character."""
    scan.at += 1
    kind = yield from scan.peek()
    if not kind:
        return
    if kind in _OCTAL:
        character = _character((yield from _read_digits(scan, _OCTAL, 3)), 8)
    else:
        scan.at += 1
        character = _ESCAPES.get(kind)
        if kind in _DIGITS:
            digits = yield from _read_digits(scan, string.hexdigits, _DIGITS[kind])
            character = _character(digits, 16) if len(digits) == _DIGITS[kind] else None
    scan.arguments(escaped(scan.text[: scan.at]) if character is None else character)
    scan.drop()


def _read_digits(scan: Scanner, digits: str, most: int) -> Wait[str]:
    begin = scan.at
    while scan.at - begin < most:
        digit = yield from scan.peek()
        if not digit or digit not in digits:
            break
        scan.at += 1
    return scan.text[begin : scan.at]


def _character(digits: str, base: int) -> str | None:
    """The character of that code as JSON writes it; half a surrogate pair as an escape. None for no code."""
    code = int(digits, base)
    if 0xD800 <= code < 0xE000:
        return f"\\u{code:04x}"
    return escaped(chr(code)) if code <= sys.maxunicode else None


def _json_of_word(word: str) -> str:
    """No text for no word."""
    if not word or word in _CONSTANTS:
        return _CONSTANTS.get(word, "")
    return word if _NUMBER.fullmatch(word) else _json_of_number(word) or f'"{escaped(word)}"'


def _json_of_number(word: str) -> str | None:
    """A number that Python writes and JSON does not, such as `1_000`, `0x1f` or `.5`; None for no number."""
    if not word.isascii() or not word.lstrip("+-.")[:1].isdigit():
        return None
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError:
        return None
    return repr(number) if math.isfinite(number) else None
