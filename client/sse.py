"""A server-sent event decoder: bytes in whatever pieces, events out. Pure.

Never a connection. Source: WHATWG HTML, "Interpreting an event stream".
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One dispatched event."""

    data: str
    event: str = "message"
    id: str = ""
    """The last event id at the time of dispatch."""


class SSEDecoder:
    """Feed it bytes, cut anywhere, also inside a character or between CR and LF."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._buffer = ""
        self._data: list[str] = []
        self._event = ""
        self._last_id = ""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """The events that these bytes complete. What a stream leaves unfinished is dropped: the standard's rule."""
        self._buffer += self._decoder.decode(data)
        events = []
        while (line := self._next_line()) is not None:
            event = self._take(line)
            if event is not None:
                events.append(event)
        return events

    def _next_line(self) -> str | None:
        end = min((at for at in (self._buffer.find("\n"), self._buffer.find("\r")) if at >= 0), default=-1)
        if end < 0 or (self._buffer[end] == "\r" and end + 1 == len(self._buffer)):
            return None  # a CR at the very end may be half of a CRLF
        line = self._buffer[:end]
        self._buffer = self._buffer[end + (2 if self._buffer.startswith("\r\n", end) else 1) :]
        return line

    def _take(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._event = value
        elif field == "id" and "\0" not in value:
            self._last_id = value
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        return ServerSentEvent("\n".join(data), event or "message", self._last_id) if data else None
