"""Runs parsers over texts cut in every way, and says what came out and when.

Never joins what a parser left apart other than by `fold`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.output.parsers import (
    ContentText,
    OutputParser,
    Part,
    ReasoningFamily,
    ReasoningStart,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    ToolFamily,
    ToolSchemas,
    fold,
)

Make = Callable[[], OutputParser]


def parse(parser: OutputParser, pieces: Iterable[str]) -> list[Part]:
    """All parts of a text that comes in these pieces."""
    parts = [part for piece in pieces for part in parser.push(piece)]
    return fold([*parts, *parser.finish()])


def after_each_character(make: Make, text: str) -> Iterator[tuple[list[Part], int]]:
    """What has left and how much is held after each character, pushed one by one."""
    parser, parts = make(), list[Part]()
    for character in text:
        parts += parser.push(character)
        yield fold(parts), parser.held


def assert_independent_of_the_cut(make: Make, text: str, pieces: Sequence[str]) -> list[Part]:
    """One push, these pieces and single characters give the same parts, which are returned."""
    whole = parse(make(), [text])
    assert parse(make(), pieces) == whole
    assert parse(make(), text) == whole
    return whole


def content(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, ContentText))


@dataclass
class Call:
    """One call, as a client would put it together."""

    name: str
    arguments: str = ""
    complete: bool = False

    @property
    def value(self) -> object:
        return json.loads(self.arguments)


def calls(parts: Iterable[Part]) -> list[Call]:
    """The calls; fails where a part is of no open call or an index is not the next."""
    found: list[Call] = []
    for part in parts:
        if isinstance(part, ToolCallBegin):
            assert part.index == len(found)
            assert part.name
            found.append(Call(part.name))
        elif isinstance(part, ToolCallArguments | ToolCallEnd):
            assert part.index == len(found) - 1
            assert not found[-1].complete
            if isinstance(part, ToolCallArguments):
                found[-1].arguments += part.text
            else:
                found[-1].complete = True
    return found


@dataclass
class Pipeline:
    """A reasoning parser, and a tool parser for what it leaves as content."""

    reasoning: ReasoningFamily
    tools: ToolFamily
    start: ReasoningStart = ReasoningStart.BEFORE
    schemas: ToolSchemas | None = None

    def parse(self, pieces: Iterable[str]) -> list[Part]:
        first, second = self.reasoning.parser(self.start), self.tools.parser(self.schemas)
        parts = [after for piece in pieces for part in first.push(piece) for after in _next_stage(second, part)]
        parts += [after for part in first.finish() for after in _next_stage(second, part)]
        return fold([*parts, *second.finish()])


def _next_stage(parser: OutputParser, part: Part) -> Sequence[Part]:
    return parser.push(part.text) if isinstance(part, ContentText) else (part,)
