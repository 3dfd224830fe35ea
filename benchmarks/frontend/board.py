"""One page of memory that the mock engine core, the load client and the benchmark share, through a file.

Only numbers, each written by one of the three. Never a lock: a reader may see a number one moment late.
"""

from __future__ import annotations

import mmap
from pathlib import Path

PAGE_BYTES = 4096
DELIVERED, INTERVAL, TOKENS, STEPS, LATE, FORGIVEN = range(6)
"""Places in the page, of eight bytes each in the machine's order. `load_client.c` knows the first one too."""


def _number(place: int, what: str) -> property:
    def read(board: Board) -> int:
        return board.words[place]

    def write(board: Board, value: int) -> None:
        board.words[place] = value

    return property(read, write, doc=what)


class Board:
    """The page. `Board.create` makes the file; whoever else opens it sees the same numbers."""

    delivered = _number(DELIVERED, "The client's: token events that arrived, and those that a stream ended without.")
    interval_us = _number(INTERVAL, "The benchmark's: from one step to the next; 0: as soon as all has arrived.")
    tokens = _number(TOKENS, "The core's: tokens that it sent.")
    steps = _number(STEPS, "The core's: steps that it made.")
    late = _number(LATE, "The core's: steps that began after their time, of those that have one.")
    forgiven = _number(FORGIVEN, "The core's: tokens that did not arrive in time, and that it waits for no more.")

    def __init__(self, file: Path) -> None:
        with file.open("r+b") as page:
            self._memory = mmap.mmap(page.fileno(), PAGE_BYTES)
        self.words = memoryview(self._memory).cast("Q")

    @classmethod
    def create(cls, file: Path) -> Board:
        file.write_bytes(bytes(PAGE_BYTES))
        return cls(file)
