"""Reasoning between two markers, such as `<think>` and `</think>`, before the answer.

Never a marker in the middle of an answer: only what the answer begins with is reasoning, later a marker is spoken of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from engine.detokenizer.stop_automaton import compile_stops
from engine.output.parsers.parser import NO_MARKERS, Grammar
from engine.output.parsers.parts import ContentText, ReasoningText
from engine.output.parsers.scanner import SPACE, Scanner, Wait

_NEWLINES: Final = re.compile(r"\n*+")


class ReasoningStart(Enum):
    """Where a prompt leaves the model."""

    BEFORE = "before"
    """The answer may begin with the opening marker."""
    INSIDE = "inside"
    """The prompt ends in reasoning."""
    AFTER = "after"
    """The prompt closed the reasoning: all of the answer is content."""


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The texts around a model's reasoning."""

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    also_ends: tuple[str, ...] = ()
    """What ends the reasoning as well, and is the first text of the content."""


def think_grammar(tags: ReasoningMarkers, start: ReasoningStart) -> Grammar:
    """Dropped with the markers are the newlines after each, and up to two newlines before the closing one."""
    closes = (newlines + close for close in tags.closes for newlines in ("", "\n", "\n\n"))
    ends = compile_stops((*closes, *tags.also_ends), False)

    def read(scan: Scanner) -> Wait[None]:
        if start is not ReasoningStart.AFTER and (yield from _read_opening(scan, tags.opens, start)):
            if (yield from scan.until(ends, ReasoningText)) in tags.also_ends:
                scan.at = 0
            else:
                yield from _drop_newlines(scan)
        yield from scan.until(NO_MARKERS, ContentText)

    return read


def _read_opening(scan: Scanner, opens: tuple[str, ...], start: ReasoningStart) -> Wait[bool]:
    """Whether the answer begins in reasoning. An opening marker is dropped also where the prompt had it already."""
    yield from scan.run(SPACE)
    found = yield from scan.read(*opens)
    if not found:
        scan.at = 0
        if start is ReasoningStart.BEFORE:
            return False
    yield from _drop_newlines(scan)
    return True


def _drop_newlines(scan: Scanner) -> Wait[None]:
    """Each at once: none of them waits for what follows, as if it might be text."""
    scan.drop()
    scan.forward = lambda _: None
    yield from scan.run(_NEWLINES)
    scan.pass_on()
    scan.forward = None
