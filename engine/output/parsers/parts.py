"""What parsers make of a choice's text: content, reasoning and tool calls, part by part in the order of the text.

Never a vendor's shape, never an id of ours: a call is known by its index.

Structs rather than dataclasses: one is made for every token of every answer, and a frozen dataclass takes ten times as
long.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TypeAlias

from msgspec import Struct


class ContentText(Struct, frozen=True, gc=False):
    """More of the answer."""

    text: str


class ReasoningText(Struct, frozen=True, gc=False):
    """More of what the model thought before its answer."""

    text: str


class ToolCallBegin(Struct, frozen=True, gc=False):
    """A tool call whose name is known. Of a choice's calls none begins before the one ahead of it has ended."""

    index: int
    """From 0, without gaps."""
    name: str
    id: str | None = None
    """The id that the model itself gave the call, in the families that write one (Kimi K2 wants it back as it was)."""


class ToolCallArguments(Struct, frozen=True, gc=False):
    """More of a call's arguments: joined, they are the JSON text that the model wrote, valid if the model's was."""

    index: int
    text: str


class ToolCallEnd(Struct, frozen=True, gc=False):
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
    """The parts with neighbours of one kind joined: the same list however the text was cut. Linear in the text."""
    folded: list[Part] = []
    for (kind, index), run in groupby(parts, _kind):
        if kind is ContentText or kind is ReasoningText:
            folded.append(kind("".join([part.text for part in run])))  # type: ignore[union-attr]
        elif kind is ToolCallArguments:
            folded.append(ToolCallArguments(index, "".join([part.text for part in run])))  # type: ignore[union-attr]
        else:
            folded += run
    return folded


def _kind(part: Part) -> tuple[type[Part], int]:
    """Parts of one kind can be joined."""
    return type(part), part.index if isinstance(part, ToolCallArguments) else 0
