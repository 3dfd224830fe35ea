"""The way round for decoders that can't be put in bytes: decode a sliding window of the last tokens and compare.

Never decodes more than a few tokens at once, never sends a U+FFFD that may still become a character, never revises.
Exact as far as the decoder looks back no further than the window's context.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from operator import index
from typing import Final

from engine.detokenizer.utf8 import REPLACEMENT

Decode = Callable[[list[int]], str]
_CONTEXT: Final = 6
"""Visible tokens kept before what is new, so that rules about the start of a text do not apply in mid-text."""
_LONGEST_CHARACTER: Final = 4
"""Tokens: a U+FFFD that outlives so many is no character in the making."""


class WindowState:
    """One sequence's window. Unlike the transducer's states it belongs to one request and changes."""

    __slots__ = ("_boundary", "_decode", "_ids", "_is_visible", "_prompt_text", "_read", "_sent", "_stalled", "pending")

    def __init__(self, decode: Decode, is_visible: Callable[[int], bool], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._is_visible = is_visible
        self._ids, self._sent, self._read = self._split_tail(self._prompt_tail(prompt))
        """The window, which starts where a character does; its text as far as it was sent or is the prompt's; and how
        many of the ids make up no more than that text."""
        self._boundary = self._read
        """A place where a character starts, for the window's next start."""
        self._stalled = 0
        """Tokens since text was last sent."""
        self._prompt_text = decode(self._ids) if self._ids else ""
        """The prompt's part of the window's text, until more is sent."""
        self.pending = len(self._sent) < len(self._prompt_text)

    def __getitem__(self, token_id: int) -> tuple[str, WindowState]:
        token_id = index(token_id)
        if not self._is_visible(token_id):
            return "", self
        self._ids.append(token_id)
        return self._advance(self._decode(self._ids)), self

    def finish(self) -> str:
        """The text held back, when no token follows."""
        return self._unsent(self._decode(self._ids)) if self.pending else ""

    def _advance(self, text: str) -> str:
        """Sends what is new and certain in the window's text; moves the window on when all of it is sent."""
        certain = text.rstrip(REPLACEMENT)
        self._stalled = 0 if len(certain) > len(self._sent) else self._stalled + 1
        self.pending = len(certain) < len(text) and self._stalled < _LONGEST_CHARACTER
        if not self.pending:
            new = self._unsent(text)
            self._move()
            return new
        if self._stalled or not certain.startswith(self._sent):
            return ""
        new = certain[len(self._sent) :]
        self._sent = certain
        self._prompt_text = ""
        return new

    def _unsent(self, text: str) -> str:
        """What of the window's text is new; of text that was rewritten, as invalid byte runs are, the new ids' own."""
        if self._prompt_text and text.startswith(self._prompt_text):  # what looked incomplete in the prompt was not
            return text[len(self._prompt_text) :]
        if text.startswith(self._sent):
            return text[len(self._sent) :]
        return self._decode(self._ids[self._read :])

    def _move(self) -> None:
        if len(self._ids) - self._boundary >= _CONTEXT:
            del self._ids[: self._boundary]
            self._boundary = len(self._ids)
        self._read = len(self._ids)
        self._sent = self._decode(self._ids)
        self._prompt_text = ""
        self._stalled = 0

    def _prompt_tail(self, prompt: Sequence[int]) -> list[int]:
        """The prompt's last visible ids, a few more than the context so that a start of a character is among them."""
        tail: list[int] = []
        for token_id in reversed(prompt):
            if self._is_visible(index(token_id)):
                tail.insert(0, index(token_id))
            if len(tail) == _CONTEXT + _LONGEST_CHARACTER:
                break
        return tail

    def _split_tail(self, tail: list[int]) -> tuple[list[int], str, int]:
        """The tail from the start of a character on, and its text without a character that it leaves incomplete."""
        starts = range(max(0, len(tail) - _CONTEXT), -1, -1)
        ends = range(len(tail), max(0, len(tail) - _LONGEST_CHARACTER), -1)
        for start, end in itertools.product(starts, ends):
            whole = self._decode(tail[start:end]) if start < end else ""
            if not whole.startswith(REPLACEMENT) and not whole.endswith(REPLACEMENT):
                # The last token may hold both: the end of what is whole, and the beginning of a character.
                shown = self._decode(tail[start:]).rstrip(REPLACEMENT) if tail else ""
                return tail[start:], max(whole, shown, key=len), end - start
        return tail, self._decode(tail).rstrip(REPLACEMENT), len(tail)
