"""Calls written as tags with one element a parameter: Qwen3-Coder, GLM, MiniMax M2, Seed-OSS, DeepSeek V3.2.

Never JSON in the text: the arguments' JSON is made as the parameters come. A parameter that can only be a string leaves
as it grows; any other waits for its end, since only then it is known what it is (see xml_values).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.detokenizer.stop_automaton import compile_stops
from engine.output.parsers.json_text import escaped
from engine.output.parsers.parser import Grammar
from engine.output.parsers.parts import Part
from engine.output.parsers.scanner import NAME, SPACE, Scanner, Wait
from engine.output.parsers.xml_values import STRING, json_of, parameter_types

_PARAMETER_NAME: Final = re.compile(r'[^<>"\n]*+')


@dataclass(frozen=True, slots=True)
class XmlFormat:
    """The tags of a family, in the order of a call. Whitespace between tags is dropped."""

    section: str
    call: str
    """What stands before the name; "" where the section's tag does, which then holds one call."""
    call_head_end: str
    """What stands after the name; "" where nothing does."""
    parameter: str
    parameter_head_ends: Mapping[str, frozenset[str] | None]
    """What stands between a parameter's name and its value, with the types that this says the value has."""
    parameter_end: str
    call_end: str
    section_end: str
    trimmed: bool = False
    """A value stands on lines of its own: one newline before it and one after it are none of it."""
    key_end: str = ""
    """What ends the name's own element, before the value's begins."""

    def grammar(self, tools: Mapping[str, Any]) -> Grammar:
        """`tools`: the schema of each tool's parameters by the tool's name."""

        def read(scan: Scanner) -> Wait[None]:
            markers = compile_stops(tuple(filter(None, (self.section, self.call))), False)
            while marker := (yield from scan.content_until(markers)):
                yield from _read_section(self, scan, tools, marker)

        return read

    @property
    def markers(self) -> tuple[str, ...]:
        """All of its tags."""
        tags = (
            self.section,
            self.call,
            self.parameter,
            self.key_end,
            self.parameter_end,
            self.call_end,
            self.section_end,
        )
        return tuple(filter(None, (*tags, *self.parameter_head_ends)))

    @property
    def value_ends(self) -> tuple[str, ...]:
        return ("\n" + self.parameter_end, self.parameter_end) if self.trimmed else (self.parameter_end,)


def _read_section(tags: XmlFormat, scan: Scanner, tools: Mapping[str, Any], marker: str) -> Wait[None]:
    yield from scan.run(SPACE)
    if tags.call and marker == tags.section and not (yield from scan.read(tags.call)):
        scan.as_content()
        return
    name = yield from scan.word(NAME)
    if not name or not (yield from _at_head_end(tags, scan)):
        scan.as_content()
        return
    scan.begin(name)
    yield from _read_parameters(tags, scan, tools.get(name))
    if not scan.call_open:
        yield from scan.markup(tags.section_end)


def _at_head_end(tags: XmlFormat, scan: Scanner) -> Wait[bool]:
    if tags.call_head_end:
        return bool((yield from scan.read(tags.call_head_end)))
    yield from scan.run(SPACE)
    return bool((yield from scan.ahead(tags.parameter, tags.section_end)))


def _read_parameters(tags: XmlFormat, scan: Scanner, schema: Any) -> Wait[None]:
    """Up to the call's end; what is neither that nor a parameter ends the call as well, and is text."""
    ends = tuple(filter(None, (tags.call_end, tags.section_end)))
    before = "{"
    while True:
        yield from scan.run(SPACE)
        found = yield from scan.read(tags.parameter, *ends)
        if found != tags.parameter or not (yield from _read_parameter(tags, scan, schema, before)):
            break
        before = ", "
    if found in ends or (yield from scan.peek()):
        scan.arguments("{}" if before == "{" else "}")
        scan.end()
    scan.drop()


def _read_parameter(tags: XmlFormat, scan: Scanner, schema: Any, before: str) -> Wait[bool]:
    """Reads a parameter's name and value; False where either is not whole."""
    name = (yield from scan.word(_PARAMETER_NAME)).strip()
    if tags.key_end:
        if not (yield from scan.read(tags.key_end)):
            return False
        yield from scan.run(SPACE)
    head_end = yield from scan.read(*tags.parameter_head_ends)
    if not head_end:
        return False
    types = tags.parameter_head_ends[head_end] or parameter_types(schema, name)
    if tags.trimmed:
        yield from scan.read("\n")
    scan.drop()
    scan.arguments(f'{before}"{escaped(name)}": ')
    if types == STRING:
        return (yield from _read_text(tags, scan))
    return (yield from _read_whole(tags, scan, types))


def _read_text(tags: XmlFormat, scan: Scanner) -> Wait[bool]:
    scan.arguments('"')
    if not (yield from scan.until(compile_stops(tags.value_ends, False), lambda raw: _escaped(scan, raw))):
        return False
    scan.drop()
    scan.arguments('"')
    return True


def _escaped(scan: Scanner, raw: str) -> Part:
    return scan.argument_text(escaped(raw))


def _read_whole(tags: XmlFormat, scan: Scanner, types: frozenset[str]) -> Wait[bool]:
    """A value that the end of the text cuts leaves as it is: as a string if it may be one."""
    searched = 0
    while (end := scan.text.find(tags.parameter_end, searched)) < 0:
        searched = max(len(scan.text) - len(tags.parameter_end) + 1, 0)
        if not (yield from scan.more()):
            raw, scan.at = scan.text, len(scan.text)
            scan.arguments('"' + escaped(raw) if types & STRING else raw.strip())
            scan.drop()
            return False
    raw = scan.text[:end]
    scan.arguments(json_of(raw.removesuffix("\n") if tags.trimmed else raw, types))
    scan.at = end + len(tags.parameter_end)
    scan.drop()
    return True
