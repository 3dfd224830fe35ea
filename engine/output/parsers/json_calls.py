"""Calls written as JSON objects with a name and arguments, one or several after a marker: most families.

Never diffs completed JSON: arguments leave as they come, by position. Where they come before the name they wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from engine.detokenizer.stop_automaton import compile_stops
from engine.output.parsers.json_text import decoded_string, read_string, read_value
from engine.output.parsers.parser import Grammar
from engine.output.parsers.parts import Part
from engine.output.parsers.scanner import SPACE, Scanner, Wait

NAME_KEY: Final = "name"
ARGUMENTS_KEYS: Final = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """Where a family writes its JSON objects: alone, several separated by whitespace, `,` or `;`, or in an array."""

    opens: tuple[str, ...]
    closes: tuple[str, ...] = ()
    bare: bool = False
    """An answer may also begin with its calls, without a marker. They must then name a tool and have arguments."""

    def grammar(self, tools: Collection[str]) -> Grammar:
        """`tools`: the names that a bare call may have; empty for any."""

        def read(scan: Scanner) -> Wait[None]:
            markers = compile_stops(self.opens, False)
            if self.bare:
                yield from _bare_section(scan, self.closes, tools)
            while (yield from scan.content_until(markers)):
                yield from read_section(scan, self.closes)

        return read


def read_section(scan: Scanner, closes: tuple[str, ...], accepts: Callable[[str], bool] | None = None) -> Wait[None]:
    """Reads the calls after a marker, and their closing marker; what is no call becomes content."""
    yield from scan.run(SPACE)
    array = yield from scan.read("[")
    called = False
    while (yield from _next_object(scan, called)):
        if not (yield from read_call(scan, closes, accepts)):
            scan.as_content()
            return
        called = True
    if not called:
        scan.as_content()
        return
    scan.at = 0
    if array:
        yield from scan.markup("]")
    yield from scan.markup(*closes)


def _bare_section(scan: Scanner, closes: tuple[str, ...], tools: Collection[str]) -> Wait[None]:
    yield from scan.run(SPACE)
    if (yield from scan.ahead("{", "[")):
        yield from read_section(scan, closes, lambda name: not tools or name in tools)
    else:
        scan.at = 0


def _next_object(scan: Scanner, called: bool) -> Wait[bool]:
    yield from scan.run(SPACE)
    if called and (yield from scan.read(",", ";")):
        yield from scan.run(SPACE)
    return bool((yield from scan.ahead("{")))


def read_call(scan: Scanner, closes: tuple[str, ...], accepts: Callable[[str], bool] | None) -> Wait[bool]:
    """Reads an object, whose brace comes next. False: it is no call, none of it decided, and `at` is where that showed.

    A call that has begun and does not go on as an object ends there. `accepts`: the names that make a call, which then
    begins with its arguments; None: a name alone makes a call.
    """
    call = _Call(scan, closes, accepts)
    scan.at += 1
    complete = yield from call.read_members()
    if not scan.call_open:
        return False
    if complete or (yield from scan.peek()):
        call.end()
    else:
        scan.drop()
    return True


class _Call:
    """One object, member by member."""

    __slots__ = ("_accepts", "_closes", "_given", "_name", "_scan", "_waiting")

    def __init__(self, scan: Scanner, closes: tuple[str, ...], accepts: Callable[[str], bool] | None) -> None:
        self._scan = scan
        self._closes = closes
        self._accepts = accepts
        self._name: str | None = None
        self._waiting: str | None = None
        """Arguments that came before the name."""
        self._given = False
        """Arguments were seen; only the first count."""

    def read_members(self) -> Wait[bool]:
        """Whether the object came to its closing brace."""
        scan = self._scan
        while True:
            yield from scan.run(SPACE)
            key = yield from self._read_key()
            if key is None or not (yield from self._read_member(key)):
                return False
            if scan.call_open:
                scan.drop()
            yield from scan.run(SPACE)
            if not (yield from scan.read(",")):
                return bool((yield from scan.read("}")))

    def end(self) -> None:
        if not self._given:
            self._scan.arguments("{}")
        self._scan.end()

    def _read_key(self) -> Wait[str | None]:
        scan = self._scan
        if not (yield from scan.ahead('"')):
            return None
        begin = scan.at
        if not (yield from read_string(scan)):
            return None
        literal = scan.text[begin : scan.at]
        yield from scan.run(SPACE)
        if not (yield from scan.read(":")):
            return None
        yield from scan.run(SPACE)
        return decoded_string(literal) or ""

    def _read_member(self, key: str) -> Wait[bool]:
        if key == NAME_KEY and self._name is None:
            return (yield from self._read_name())
        if key in ARGUMENTS_KEYS and not self._given:
            return (yield from self._read_arguments())
        return (yield from self._skip_value())

    def _read_name(self) -> Wait[bool]:
        scan, begin = self._scan, self._scan.at
        if not (yield from scan.ahead('"')) or not (yield from read_string(scan)):
            return False
        self._name = decoded_string(scan.text[begin : scan.at])
        if not self._name or (self._accepts is not None and not self._accepts(self._name)):
            return False
        if self._given or self._accepts is None:
            self._begin(self._name)
        return True

    def _read_arguments(self) -> Wait[bool]:
        scan = self._scan
        self._given = True
        if self._name is None:
            begin = scan.at
            complete = yield from read_value(scan, self._closes)
            self._waiting = scan.text[begin : scan.at]
            return complete
        if not scan.call_open:
            self._begin(self._name)
        return (yield from forward_value(scan, self._closes, scan.argument_text))

    def _skip_value(self) -> Wait[bool]:
        if not self._scan.call_open:
            return (yield from read_value(self._scan, self._closes))
        return (yield from forward_value(self._scan, self._closes, lambda _: None))

    def _begin(self, name: str) -> None:
        self._scan.begin(name)
        if self._waiting is not None:
            self._scan.arguments(self._waiting)


def forward_value(scan: Scanner, closes: tuple[str, ...], make: Callable[[str], Part | None]) -> Wait[bool]:
    """`read_value` of a call that has begun, whose parts leave as they are read."""
    scan.drop()
    scan.forward = make
    complete = yield from read_value(scan, closes)
    scan.pass_on()
    scan.forward = None
    return complete
