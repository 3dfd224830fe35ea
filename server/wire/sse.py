"""Server-sent events as bytes: the only place that writes `data:`.

Never more than one `data:` line an event, never a byte above 0x7E (so that no network cut, U+2028 or naive client
breaks a character), never a block without data but a comment. Source: WHATWG HTML, section "Server-sent events".
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as ascii_string
from typing import Any

DONE = b"data: [DONE]\n\n"
"""The success terminal of the OpenAI dialects. Never after an error."""
KEEPALIVE = b": keep-alive\n\n"
"""A comment: clients skip it. Only on streams whose events have no ids, see the SDK's handling of data-less blocks."""
CONTENT_TYPE = "text/event-stream; charset=utf-8"
HEADERS = {
    "content-type": CONTENT_TYPE,
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
"""What keeps proxies from holding or rewriting a stream."""
_HOLE = "\x00hole\x00"


def ascii_json(value: Any) -> bytes:
    """JSON without a byte above 0x7E and without NaN or Infinity (`ValueError`)."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def frame(value: Any) -> bytes:
    """One event: one `data:` line of JSON, one blank line."""
    return b"data: %b\n\n" % ascii_json(value)


class FrameTemplate:
    """A frame of which only one string changes: its prefix and suffix are made once, from a frame like any other."""

    __slots__ = ("_prefix", "_suffix")

    def __init__(self, value: Any) -> None:
        """`value` holds the result of `hole()` exactly once, where the text goes."""
        prefix, found, suffix = frame(value).partition(ascii_json(_HOLE))
        if not found:
            raise ValueError("the value has no hole")
        self._prefix, self._suffix = prefix, suffix

    @staticmethod
    def hole() -> str:
        return _HOLE

    def fill(self, text: str) -> bytes:
        """The frame with this text: the same bytes as `frame` of the whole value."""
        return b"%b%b%b" % (self._prefix, ascii_string(text).encode("ascii"), self._suffix)
