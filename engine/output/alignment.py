"""The one list of per-token records: which token's text ends where, and so which tokens a released text completes.

Never any text of its own: it counts characters. Logprobs, text offsets, usage and the account all rest on it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.types import TokenLogprobs


@dataclass(slots=True)
class AlignedToken:
    """A generated token and its span in the answer's text, in characters."""

    token_id: int
    start: int
    end: int
    logprobs: TokenLogprobs | None


class TokenAlignment:
    """Tokens in order of generation, held until the text that they end in is released."""

    __slots__ = ("_decoded", "_held", "_released")

    def __init__(self, echoed_characters: int) -> None:
        """`echoed_characters`: text of the answer that comes before that of its first token."""
        self._held: deque[AlignedToken] = deque()
        self._decoded = echoed_characters
        self._released = 0

    def add(self, token_id: int, characters: int, incomplete: bool, logprobs: TokenLogprobs | None) -> None:
        """A token that made `characters` of text; `incomplete` when it leaves a character begun.

        A begun character is counted as one: that is what it becomes, as itself or as U+FFFD.
        """
        start = self._decoded
        self._decoded += characters
        self._held.append(AlignedToken(token_id, start, self._decoded + incomplete, logprobs))

    def release(self, characters: int) -> list[AlignedToken]:
        """So many more characters left; returns the tokens that are complete with them."""
        self._released += characters
        released = []
        held = self._held
        while held and held[0].end <= self._released:
            released.append(held.popleft())
        return released

    def release_all(self, characters: int) -> list[AlignedToken]:
        """The answer ends with so many more characters: every token left is released, its span cut at the end."""
        self._released += characters
        end = self._released
        released = list(self._held)
        self._held.clear()
        for token in released:
            token.start, token.end = min(token.start, end), min(token.end, end)
        return released
