"""Where one answer stands in its grammar: which tokens may come next, and on from there.

Never chooses a token. Many answers follow one grammar at a time; what its lexer has learned they share.
"""

from __future__ import annotations

import time

from llguidance import LLMatcher

from engine.types import Grammar

STEP_SECONDS = 0.03
"""Processor time that one token of one answer may take: a usual one takes 10 to 100 microseconds. An ambiguous grammar
takes longer with every token, and all other answers wait meanwhile."""


class Follower:
    """At the beginning when it is made, which takes microseconds; told of each token once."""

    __slots__ = ("_matcher", "_seconds")

    def __init__(self, grammar: Grammar) -> None:
        self._matcher: LLMatcher = grammar.compiled.deep_copy()
        self._seconds = 0.0

    def allowed(self) -> bytes:
        """One bit a token, the lowest first, set where the token may come next; of a complete sentence, the ends.

        Raises `ValueError` when the answer has left the grammar, or the grammar can't be followed any further.
        """
        began = time.thread_time()
        mask: bytes = self._matcher.compute_bitmask()
        self._seconds += time.thread_time() - began
        if self._matcher.is_error():
            raise ValueError(f"the grammar can't be followed further: {self._matcher.get_error()}")
        if self._seconds > STEP_SECONDS:
            raise ValueError("the grammar has become too complex to follow")
        return mask

    def take(self, token_id: int) -> None:
        """Goes on behind a token; that it was not allowed shows at the next mask."""
        began = time.thread_time()
        self._matcher.consume_token(token_id)
        self._seconds = time.thread_time() - began
