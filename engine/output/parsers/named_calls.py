"""Calls written as a name, a separator and the arguments' JSON, between section tokens: DeepSeek, Kimi K2, Mistral.

Never a guess at a name: without its separator a name is text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, TypeAlias

from engine.detokenizer.stop_automaton import compile_stops
from engine.output.parsers.json_calls import forward_value, read_section
from engine.output.parsers.parser import Grammar
from engine.output.parsers.scanner import NAME, SPACE, Scanner, Wait

_FENCE: Final = "```"
_FENCE_OPEN: Final = "```json"


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before a call's arguments."""

    name: str
    id: str | None = None


ReadHeader: TypeAlias = Callable[[Scanner], Wait[Header | None]]
"""Reads what follows a call's opening marker, up to its arguments; None where it is no call."""


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """Where a family writes such calls. A section may hold several, and a call may come without one."""

    section: str
    section_end: str
    call: str
    call_end: str
    header: ReadHeader

    def grammar(self, tools: Collection[str]) -> Grammar:
        def read(scan: Scanner) -> Wait[None]:
            markers = compile_stops((self.section, self.call), False)
            while marker := (yield from scan.content_until(markers)):
                yield from self._read_section(scan, marker)

        return read

    def _read_section(self, scan: Scanner, marker: str) -> Wait[None]:
        yield from scan.run(SPACE)
        if marker == self.section and not (yield from scan.read(self.call)):
            scan.as_content()
            return
        header = yield from self.header(scan)
        if header is None:
            scan.as_content()
            return
        yield from read_arguments(scan, header, (self.call_end, self.section_end))
        for end in (_FENCE, self.call_end, self.section_end):
            yield from scan.markup(end)


@dataclass(frozen=True, slots=True)
class MistralFormat:
    """`[TOOL_CALLS]`, then a JSON array of calls, or one call's name, `[ARGS]` (newer models: none) and arguments."""

    call: str

    def grammar(self, tools: Collection[str]) -> Grammar:
        def read(scan: Scanner) -> Wait[None]:
            markers = compile_stops((self.call,), False)
            while (yield from scan.content_until(markers)):
                yield from scan.run(SPACE)
                if (yield from scan.ahead("[", "{")):
                    yield from read_section(scan, ())
                else:
                    yield from self._read_call(scan)

        return read

    def _read_call(self, scan: Scanner) -> Wait[None]:
        header = yield from _mistral_header(scan)
        if header is None:
            scan.as_content()
        else:
            yield from read_arguments(scan, header, (self.call,))


def read_arguments(scan: Scanner, header: Header, closes: tuple[str, ...]) -> Wait[None]:
    """The call begins; reads its arguments, `{}` where none are written. Whatever else ends the call, and is text."""
    scan.begin(header.name, header.id)
    yield from scan.run(SPACE)
    if (yield from scan.ahead("{")):
        complete = yield from forward_value(scan, closes, scan.argument_text)
    else:
        complete = bool((yield from scan.peek()))
        if complete:
            scan.arguments("{}")
    if complete or (yield from scan.peek()):
        scan.end()
    scan.drop()


def deepseek_header(scan: Scanner) -> Wait[Header | None]:
    """V3.1: `NAME<｜tool▁sep｜>`. V3: `function<｜tool▁sep｜>NAME`, a newline and a JSON code block's beginning."""
    name = yield from scan.word(NAME)
    if not name or not (yield from scan.read("<｜tool▁sep｜>")):
        return None
    yield from scan.run(SPACE)
    if (yield from scan.ahead("{", "<")):
        return Header(name)
    name = yield from scan.word(NAME)
    yield from scan.run(SPACE)
    if not name or not (yield from scan.read(_FENCE_OPEN)):
        return None
    return Header(name)


def kimi_header(scan: Scanner) -> Wait[Header | None]:
    """`functions.NAME:INDEX<|tool_call_argument_begin|>`; all before the marker is the call's id."""
    call_id = yield from scan.word(NAME)
    yield from scan.run(SPACE)
    if not call_id or not (yield from scan.read("<|tool_call_argument_begin|>")):
        return None
    name, _, index = call_id.removeprefix("functions.").rpartition(":")
    return Header(name, call_id) if name and index.isdigit() else Header(call_id.removeprefix("functions."), call_id)


def _mistral_header(scan: Scanner) -> Wait[Header | None]:
    name = yield from scan.word(NAME)
    call_id: str | None = None
    if not name:
        return None
    if (yield from scan.read("[CALL_ID]")):
        call_id = yield from scan.word(NAME)
    named = (yield from scan.read("[ARGS]")) or (yield from scan.ahead("{"))
    return Header(name, call_id or None) if named else None
