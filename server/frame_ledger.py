"""Which tokens stand in which bytes of a connection: so that a count of acknowledged bytes is a count of whole tokens.

Never a socket and never a clock: byte offsets and token counts are handed in.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

FRAMES_KEPT = 128
"""Frames over which it is worth asking the kernel which of them may be forgotten."""


class FrameLedger:
    """The frames of one answer that the client's kernel may not have yet, oldest first."""

    def __init__(self) -> None:
        # Two columns, 16 bytes a frame: as tuples of integers a thousand slow readers' frames would take tens of MB.
        self._ends = array("Q")
        self._tokens = array("Q")
        self._delivered_tokens = 0
        self._crowded_at = FRAMES_KEPT

    def note(self, end: int, tokens: int) -> None:
        """A frame was accepted: `end` bytes went over the connection with it, and `tokens` of this answer.

        Both are totals, and `end` is larger than any before.
        """
        self._ends.append(end)
        self._tokens.append(tokens)

    @property
    def crowded(self) -> bool:
        """Whether to call `delivered` now, to forget what arrived. Seldom, whatever the stream's length."""
        return len(self._ends) >= self._crowded_at

    def delivered(self, acknowledged_bytes: int) -> int:
        """Tokens of the frames whose last byte is among the acknowledged ones. These frames are forgotten."""
        arrived = bisect_right(self._ends, acknowledged_bytes)
        if arrived:
            self._delivered_tokens = self._tokens[arrived - 1]
            del self._ends[:arrived], self._tokens[:arrived]
        self._crowded_at = max(FRAMES_KEPT, 2 * len(self._ends))
        return self._delivered_tokens
