"""The automaton behind the stop matcher, compiled once for each list of stop strings and shared.

Built like the detokenizer's transducer: a node remembers what each short piece of text leads to, so a piece that was
seen before costs one look-up whatever the number of stop strings. Never more than `REMEMBERED_PIECES` of them.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

REMEMBERED_PIECES: Final = 1 << 13
"""Pieces of text remembered by one automaton, about 300 bytes each."""
LARGEST_SHARED: Final = 2_048
"""Characters of all stop strings together, each a node of half a kilobyte; larger automata live with their request."""
_LONGEST_REMEMBERED: Final = 48
"""Characters; longer pieces hardly ever come twice."""


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """What one push released, and the stop string that it completed, if any."""

    text: str
    matched: str | None


class StopNode(dict[str, "tuple[StopOutcome, StopNode]"]):
    """Where the automaton stands: the longest suffix of the text so far that is a prefix of some stop string."""

    __slots__ = ("_automaton", "_depth", "_stop", "children", "fail", "held", "match")

    def __init__(self, automaton: StopAutomaton, stop: str, depth: int) -> None:
        self._automaton = automaton
        self._stop = stop
        self._depth = depth
        self.children: dict[str, StopNode] = {}
        self.fail: StopNode = self
        self.match: str | None = None
        """The longest stop string that ends here."""
        self.held = 0
        """Characters to hold back here."""

    def __missing__(self, text: str) -> tuple[StopOutcome, StopNode]:
        result = self._automaton.read(self, text, armed=True)
        self._automaton.remember(self, text, result)
        return result

    def read(self, text: str, *, armed: bool) -> tuple[StopOutcome, StopNode]:
        """Where `text` leads and what it releases; not armed, no stop string is matched."""
        return self._automaton.read(self, text, armed=armed)

    def advance(self, character: str) -> StopNode:
        """The node after one more character."""
        node = self
        while character not in node.children:
            if node.fail is node:
                return node
            node = node.fail
        return node.children[character]

    def child(self, stop: str) -> StopNode:
        """The node for `stop` up to one character more than here, made if need be."""
        character = stop[self._depth]
        if character not in self.children:
            self.children[character] = StopNode(self._automaton, stop, self._depth + 1)
        return self.children[character]

    def link(self, fail: StopNode) -> None:
        """Sets what follows from the longest proper suffix, which is linked already."""
        self.fail = fail
        self.match = self.match or fail.match
        # A whole stop string that leads no further is no proper prefix: only its suffixes can still become one.
        self.held = self._depth if self.children else fail.held

    @property
    def held_text(self) -> str:
        return self._stop[self._depth - self.held : self._depth]

    @property
    def after_finish(self) -> StopNode:
        return self._automaton.root


class MatchedNode(StopNode):
    """After a match: whatever comes is dropped."""

    __slots__ = ()

    def __missing__(self, text: str) -> tuple[StopOutcome, StopNode]:
        return StopOutcome("", self.match), self

    def read(self, text: str, *, armed: bool) -> tuple[StopOutcome, StopNode]:
        return self[text]

    @property
    def after_finish(self) -> StopNode:
        return self


class StopAutomaton:
    """All nodes of one list of stop strings."""

    def __init__(self, stops: tuple[str, ...], include: bool) -> None:
        self._include = include
        self._remembered = 0
        self.root = StopNode(self, "", 0)
        self._nodes = [self.root]
        for stop in stops:
            node = self.root
            for _ in stop:
                node = node.child(stop)
            node.match = stop
        self._link()
        starts = "".join(map(re.escape, self.root.children))
        self._find_start = re.compile(f"[{starts}]" if starts else r"(?!)").search
        self._ends = {stop: self._end(stop) for stop in stops}

    def read(self, node: StopNode, text: str, *, armed: bool) -> tuple[StopOutcome, StopNode]:
        """Reads `text` from `node` on."""
        before, at = node, 0
        while at < len(text):
            if node is self.root:
                start = self._find_start(text, at)
                if start is None:
                    break
                at = start.start()
            node = node.advance(text[at])
            at += 1
            if armed and node.match is not None:
                return self._matched(before.held_text + text[:at], node.match)
        whole = before.held_text + text if before.held else text
        released = whole[: len(whole) - node.held] if node.held else whole
        return StopOutcome(released, None), node

    def remember(self, node: StopNode, text: str, result: tuple[StopOutcome, StopNode]) -> None:
        """Keeps a result for the next time that the same text comes to the same node."""
        if len(text) > _LONGEST_REMEMBERED:
            return
        if self._remembered >= REMEMBERED_PIECES:
            for known in self._nodes:
                known.clear()
            self._remembered = 0
        self._remembered += 1
        node[text] = result

    def _matched(self, text: str, stop: str) -> tuple[StopOutcome, StopNode]:
        released = text if self._include else text[: len(text) - len(stop)]
        return StopOutcome(released, stop), self._ends[stop]

    def _end(self, stop: str) -> StopNode:
        end = MatchedNode(self, "", 0)
        end.match = stop
        return end

    def _link(self) -> None:
        """Links each node to its longest proper suffix, breadth first."""
        queue = deque([self.root])
        while queue:
            parent = queue.popleft()
            for character, node in parent.children.items():
                node.link(self.root if parent is self.root else parent.fail.advance(character))
                self._nodes.append(node)
                queue.append(node)


def compile_stops(stops: tuple[str, ...], include: bool) -> StopNode:
    """The automaton's start. Raises `ValueError` for an empty stop string."""
    if not all(stops):
        raise ValueError("a stop string is empty")
    if sum(map(len, stops)) > LARGEST_SHARED:
        return StopAutomaton(stops, include).root
    return _shared(stops, include)


@lru_cache(maxsize=32)
def _shared(stops: tuple[str, ...], include: bool) -> StopNode:
    return StopAutomaton(stops, include).root
