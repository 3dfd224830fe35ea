"""The one list of per-token records: which token's text ends where, and so which tokens a released text completes.

Never any text of its own: it counts characters. Logprobs, text offsets, usage and the account all rest on it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.types import TokenLogprobs


@dataclass(slots=True)
class AlignedToken:
    """A generated token and its span in the decoded text, in characters."""

    token_id: int
    start: int
    end: int
    logprobs: TokenLogprobs | None


class TokenAlignment:
    """Tokens in order of generation, held until the text that they end in is decided."""

    __slots__ = ("_decoded", "_held")

    def __init__(self, echoed_characters: int) -> None:
        """`echoed_characters`: text of the answer that comes before that of its first token."""
        self._held: deque[AlignedToken] = deque()
        self._decoded = echoed_characters

    def add(self, token_id: int, characters: int, incomplete: bool, logprobs: TokenLogprobs | None) -> None:
        """A token that made `characters` of text; `incomplete` when it leaves a character begun.

        A begun character is counted as one: that is what it becomes, as itself or as U+FFFD.
        """
        start = self._decoded
        self._decoded += characters
        self._held.append(AlignedToken(token_id, start, self._decoded + incomplete, logprobs))

    def release(self, held_characters: int) -> list[AlignedToken]:
        """All but the last so many characters are decided; returns the tokens that are complete with them."""
        decided = self._decoded - held_characters
        released = []
        held = self._held
        while held and held[0].end <= decided:
            released.append(held.popleft())
        return released

    def release_all(self, length: int | None) -> list[AlignedToken]:
        """Every token left, as the answer ends; spans are cut at its length, if it is one of the decoded text."""
        released = list(self._held)
        self._held.clear()
        if length is not None:
            for token in released:
                token.start, token.end = min(token.start, length), min(token.end, length)
        return released

    @property
    def held_tokens(self) -> int:
        """Tokens of which not all text is decided."""
        return len(self._held)
