"""What parsers make of a choice's text: content, reasoning and tool calls, part by part in the order of the text.

Never a vendor's shape, never an id of ours: a call is known by its index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ContentText:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """More of what the model thought before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """A tool call whose name is known. Of a choice's calls none begins before the one ahead of it has ended."""

    index: int
    """From 0, without gaps."""
    name: str
    id: str | None = None
    """The id that the model itself gave the call, in the families that write one (Kimi K2 wants it back as it was)."""


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments: joined, they are the JSON text that the model wrote, valid if the model's was."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is complete. One that the end of the answer cut has no such part."""

    index: int


Part: TypeAlias = ContentText | ReasoningText | ToolCallBegin | ToolCallArguments | ToolCallEnd


def append_part(parts: list[Part], part: Part) -> None:
    """Adds a part to a list, as one with the last where both are text of the same kind (and call)."""
    if not parts:
        parts.append(part)
        return
    last = parts[-1]
    if isinstance(part, ContentText) and isinstance(last, ContentText):
        part = ContentText(last.text + part.text)
    elif isinstance(part, ReasoningText) and isinstance(last, ReasoningText):
        part = ReasoningText(last.text + part.text)
    elif isinstance(part, ToolCallArguments) and isinstance(last, ToolCallArguments) and part.index == last.index:
        part = ToolCallArguments(part.index, last.text + part.text)
    else:
        parts.append(part)
        return
    parts[-1] = part


def fold(parts: Iterable[Part]) -> list[Part]:
    """The parts with neighbours of one kind joined: the same list however the text was cut."""
    folded: list[Part] = []
    for part in parts:
        append_part(folded, part)
    return folded
