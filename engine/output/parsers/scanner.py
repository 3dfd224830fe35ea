"""The text that a grammar reads, come as it may, and the parts that the grammar makes of it.

Never waits itself: a grammar is a generator that yields when it needs more text than has come (`Wait`), so it is
written as if it had all of the text. What was read but is in no part yet stays in `text`, and may still be content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Final, TypeAlias, TypeVar

from engine.detokenizer.stop_automaton import StopNode
from engine.output.parsers.parts import (
    ContentText,
    Part,
    ToolCallArguments,
    ToolCallBegin,
    ToolCallEnd,
    append_part,
)

T = TypeVar("T")
Wait: TypeAlias = Generator[None, None, T]
"""Yields whenever more text is needed, and returns a `T`."""

SPACE: Final = re.compile(r"\s*+")
NAME: Final = re.compile(r"[^\s<>{}\[\]()\"'`=,;|｜]*+")
"""A function's name: OpenAI's letters, digits, `_` and `-`, and whatever else no format writes around a name."""

LONGEST_PIECE: Final = 1 << 12
"""Characters to give a scanner at once: what is decided is cut off the text's front, which copies the rest."""


class Scanner:
    """Reads text from `at` on. `text` begins with the first character that is not decided yet.

    While `forward` is set, all that is read is decided as it is read: it makes the part that `forward` says.
    """

    __slots__ = ("_fresh", "at", "call_open", "calls", "ended", "forward", "parts", "plain", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        """No more text will come."""
        self.parts: list[Part] = []
        self.calls = 0
        """Calls that have ended, and so the index of the open one or the next."""
        self.call_open = False
        self.forward: Callable[[str], Part | None] | None = None
        self.plain: tuple[StopNode, Callable[[str], Part]] | None = None
        """While nothing is held and nothing but a marker is of interest: what looks for it, and what text becomes."""
        self._fresh = True

    def more(self) -> Wait[bool]:
        """Waits for more text; False when none will come. While forwarding, no position but `at` outlives it."""
        if self.forward is not None:
            self.pass_on()
        if self.ended:
            return False
        yield
        return True

    def peek(self) -> Wait[str]:
        """The next character, which is not read; "" at the end."""
        while self.at == len(self.text):
            if not (yield from self.more()):
                return ""
        return self.text[self.at]

    def run(self, pattern: re.Pattern[str]) -> Wait[None]:
        """Reads as far as `pattern` goes, which must match the empty text, and a longer one by matching its pieces."""
        while True:
            match = pattern.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text) or not (yield from self.more()):
                return

    def word(self, pattern: re.Pattern[str]) -> Wait[str]:
        """What `run` reads. Not while forwarding."""
        begin = self.at
        yield from self.run(pattern)
        return self.text[begin : self.at]

    def ahead(self, *literals: str) -> Wait[str]:
        """Which of these comes next, "" for none; nothing is read. Of two that begin alike name the longer first."""
        while True:
            for literal in literals:
                if self.text.startswith(literal, self.at):
                    return literal
                if not self.ended and literal.startswith(self.text[self.at : self.at + len(literal)]):
                    break
            else:
                return ""
            yield from self.more()

    def read(self, *literals: str) -> Wait[str]:
        """Reads what `ahead` says."""
        found = yield from self.ahead(*literals)
        self.at += len(found)
        return found

    def until(self, markers: StopNode, make: Callable[[str], Part]) -> Wait[str]:
        """Makes parts of the text up to the next marker, which is read but not decided; "" at the end.

        Held back is no more than what may become a marker, and before it what was read already.
        """
        before, node = self.at, markers
        while True:
            outcome, node = node[self.text[self.at :]]
            if outcome.text:
                self._add(make(self._take(before + len(outcome.text))))
                before = 0
            if outcome.matched is not None:
                self.at = before + len(outcome.matched)
                return outcome.matched
            self.at = len(self.text)
            self.plain = None if self.text else (node, make)
            waited = yield from self.more()
            self.plain = None
            if not waited:
                self._finish_text(make)
                return ""

    def content_until(self, markers: StopNode) -> Wait[str]:
        """`until` for content; whitespace at the start and after a call waits for what follows it.

        It stays in front of text, and is dropped before a call and, after a call, at the end.
        """
        if self._fresh:
            yield from self.run(SPACE)
        return (yield from self.until(markers, ContentText))

    def markup(self, *literals: str) -> Wait[bool]:
        """Drops one of these after a call, with whitespace before it; at the end also the beginning of one."""
        if not literals:
            return False
        yield from self.run(SPACE)
        found = yield from self.read(*literals)
        cut = self.ended and any(literal.startswith(self.text[self.at :]) for literal in literals)
        if cut and not found:
            self.at = len(self.text)
        elif not found:
            self.at = 0
        self.drop()
        return bool(found)

    def begin(self, name: str, call_id: str | None = None) -> None:
        """A call begins, and what was read is of it."""
        self.drop()
        self.call_open = True
        self._add(ToolCallBegin(self.calls, name, call_id))

    def arguments(self, text: str) -> None:
        """More of the open call's arguments, whatever was read."""
        if text:
            self._add(ToolCallArguments(self.calls, text))

    def end(self) -> None:
        """The open call is complete, and what was read is of it."""
        self.drop()
        self._add(ToolCallEnd(self.calls))
        self.calls += 1
        self.call_open = False
        self._fresh = True

    def argument_text(self, text: str) -> Part:
        """The part that text of the open call's arguments is, for `forward`."""
        return ToolCallArguments(self.calls, text)

    def pass_on(self) -> None:
        """What was read becomes what `forward` makes of it."""
        if self.at and self.forward is not None:
            self._add(self.forward(self._take(self.at)))

    def as_content(self) -> None:
        """What was read is no call: it is content, as it was."""
        if self.at:
            self._add(ContentText(self._take(self.at)))

    def drop(self) -> None:
        """What was read is decided, and in no part."""
        self._take(self.at)

    def take_parts(self) -> list[Part]:
        """The parts made since this was last asked."""
        parts, self.parts = self.parts, []
        return parts

    def _take(self, characters: int) -> str:
        taken, self.text = self.text[:characters], self.text[characters:]
        self.at = max(self.at - characters, 0)
        return taken

    def _add(self, part: Part | None) -> None:
        if part is None:
            return
        if isinstance(part, ContentText):
            self._fresh = False
        append_part(self.parts, part)

    def _finish_text(self, make: Callable[[str], Part]) -> None:
        rest = self._take(len(self.text))
        if rest and not (self._fresh and self.calls and rest.isspace()):
            self._add(make(rest))
