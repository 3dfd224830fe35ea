"""Calls written as Python: `[name(key=literal, ...), ...]`, as Llama 4, OLMo 3 and LFM2 do.

Never evaluated. The arguments' JSON is made as the literals come (see python_values).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from engine.detokenizer.stop_automaton import compile_stops
from engine.output.parsers.json_text import escaped
from engine.output.parsers.parser import Grammar
from engine.output.parsers.python_values import read_literal
from engine.output.parsers.scanner import SPACE, Scanner, Wait

_NAME: Final = re.compile(r"[\w.\-]*+")
_KEY: Final = re.compile(r"\w*+")


@dataclass(frozen=True, slots=True)
class PythonFormat:
    """Where a family writes its list of calls, whose brackets may be left out after a marker."""

    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    bare: bool = False
    """An answer may also begin with the list's bracket. Its calls must then name tools."""

    def grammar(self, tools: Collection[str]) -> Grammar:
        """`tools`: the names that a bare call may have; empty for any."""

        def read(scan: Scanner) -> Wait[None]:
            markers = compile_stops(self.opens, False)
            if self.bare:
                yield from scan.run(SPACE)
                if (yield from scan.ahead("[")):
                    yield from _read_list(scan, self.closes, tools)
                else:
                    scan.at = 0
            while (yield from scan.content_until(markers)):
                yield from _read_list(scan, self.closes, ())

        return read


def _read_list(scan: Scanner, closes: tuple[str, ...], tools: Collection[str]) -> Wait[None]:
    """Reads calls, separated by commas or whitespace; what is no call becomes content."""
    yield from scan.run(SPACE)
    bracket = yield from scan.read("[")
    called = False
    while True:
        yield from scan.run(SPACE)
        if called and (yield from scan.read(",")):
            yield from scan.run(SPACE)
        if called and (yield from scan.ahead("]", *closes)):
            break
        if not (yield from _read_call(scan, tools)):
            if called and not bracket:
                break
            scan.as_content()
            return
        called = True
    scan.at = 0
    if bracket:
        yield from scan.markup("]")
    yield from scan.markup(*closes)


def _read_call(scan: Scanner, tools: Collection[str]) -> Wait[bool]:
    """False: no call, and nothing of it is decided. One that has begun and does not go on as a call ends there."""
    name = yield from scan.word(_NAME)
    if not name or (tools and name not in tools) or not (yield from scan.read("(")):
        return False
    yield from scan.run(SPACE)
    if (yield from scan.read(")")):
        scan.begin(name)
        scan.arguments("{}")
        scan.end()
        return True
    key = yield from _read_key(scan)
    if not key:
        return False
    scan.begin(name)
    if (yield from _read_arguments(scan, key)) or (yield from scan.peek()):
        scan.end()
    scan.drop()
    return True


def _read_key(scan: Scanner) -> Wait[str]:
    """A keyword and its `=`; "" where none comes."""
    key = yield from scan.word(_KEY)
    yield from scan.run(SPACE)
    return key if (yield from scan.read("=")) else ""


def _read_arguments(scan: Scanner, key: str) -> Wait[bool]:
    """From the first value to the closing parenthesis; False where that does not come.

    What comes in its place between two arguments closes the JSON too.
    """
    before = "{"
    while True:
        scan.arguments(f'{before}"{escaped(key)}": ')
        if not (yield from read_literal(scan)):
            return False
        before = ", "
        yield from scan.run(SPACE)
        comma = yield from scan.read(",")
        yield from scan.run(SPACE)
        if (yield from scan.read(")")):
            scan.arguments("}")
            return True
        scan.drop()
        key = (yield from _read_key(scan)) if comma else ""
        if not key:
            if (yield from scan.peek()):
                scan.arguments("}")
            return False
