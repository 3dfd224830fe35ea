"""The streaming parser: text in pieces to parts, by one family's grammar.

Never a second path for a whole answer: it is one push and `finish`, and any cut of the text folds to the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from engine.detokenizer.stop_automaton import compile_stops
from engine.output.parsers.parts import ContentText, Part
from engine.output.parsers.scanner import LONGEST_PIECE, Scanner, Wait

Grammar = Callable[[Scanner], Wait[None]]
"""What one stage looks for in the text, written as a generator over a scanner. It ends when the text has ended."""

NO_MARKERS: Final = compile_stops((), False)


class OutputParser:
    """One stage of one choice: reasoning, or tool calls. Raises on no text."""

    __slots__ = ("_grammar", "_scan")

    def __init__(self, grammar: Grammar) -> None:
        self._scan = Scanner()
        self._grammar = grammar(self._scan)
        next(self._grammar)

    def push(self, text: str) -> Sequence[Part]:
        """The parts that are certain with this text. `ValueError` after `finish`."""
        scan = self._scan
        if scan.plain is not None:
            node, make = scan.plain
            outcome, after = node[text]
            if after is node and text:
                # Most pieces of most answers: the automaton is where it was, so nothing is held.
                return (make(outcome.text),)
        if scan.ended:
            raise ValueError("the parser is finished")
        if len(text) <= LONGEST_PIECE:
            return self._read(text)
        pieces = (text[start : start + LONGEST_PIECE] for start in range(0, len(text), LONGEST_PIECE))
        return [part for piece in pieces for part in self._read(piece)]

    def finish(self) -> Sequence[Part]:
        """What was held back, when no text follows: a marker that never came whole is what it was held as."""
        self._scan.ended = True
        return self._read("")

    @property
    def held(self) -> int:
        """Characters taken in that are in no part and may still be: all others are decided, in a part or dropped."""
        return len(self._scan.text)

    @property
    def passes_through(self) -> bool:
        """Whatever comes from here on is content, as it is: the stage can be left out."""
        plain = self._scan.plain
        return plain is not None and plain[0] is NO_MARKERS and plain[1] is ContentText

    def _read(self, piece: str) -> Sequence[Part]:
        self._scan.text += piece
        next(self._grammar, None)
        return self._scan.take_parts()
