"""The stop matcher: finds client stop strings in a text that comes in pieces, and holds back no more than it must.

Never sees tokens, never searches text twice: an Aho-Corasick automaton (CACM 18(6), 1975) reads each character once.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.detokenizer.stop_automaton import StopNode, StopOutcome, compile_stops

__all__ = ["StopMatcher", "StopOutcome"]


class StopMatcher:
    """One sequence's stop strings. The match that completes first wins; of several on the same character, the longest.

    Held back is exactly the longest suffix of the text that is a proper prefix of some stop string.
    `node` is public for loops over many sequences: `outcome, matcher.node = matcher.node[text]` is an armed `push`.
    """

    __slots__ = ("node",)

    node: StopNode

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """`include`: the matched stop string is released too. Raises `ValueError` for an empty stop string."""
        self.node = compile_stops(tuple(stops), include)

    def push(self, text: str, *, armed: bool = True) -> StopOutcome:
        """Takes the next text; returns what can be released, and the stop string if one was completed.

        Not `armed` (within `min_tokens`): stop strings that complete in `text` are ordinary text.
        After a match nothing more is released.
        """
        outcome, self.node = self.node[text] if armed else self.node.read(text, armed=False)
        return outcome

    def finish(self) -> str:
        """What was held back, when no text follows; nothing after a match."""
        held = self.node.held_text
        self.node = self.node.after_finish
        return held

    @property
    def held_back(self) -> int:
        """Characters held now."""
        return self.node.held
