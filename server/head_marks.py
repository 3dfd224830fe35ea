"""The marks in a request's head at which its bytes may be cut before they are parsed. Pure."""

from __future__ import annotations

BLANK_LINE = b"\r\n\r\n"
_BEGINNINGS = frozenset(mark[:size] for mark in (BLANK_LINE, b"\r\nupgrade:") for size in range(1, len(mark)))
_LONGEST_BEGINNING = max(map(len, _BEGINNINGS))


def beginning_at_end(data: bytes, start: int) -> int:
    """How many of the last bytes, none before `start`, may be the beginning of a mark."""
    sizes = range(min(_LONGEST_BEGINNING, len(data) - start), 0, -1)
    return next((size for size in sizes if data[-size:].lower() in _BEGINNINGS), 0)
