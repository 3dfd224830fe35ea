"""The SSE decoder against the WHATWG standard: any cut of the same bytes gives the same events.

Never a network: bytes go in, events come out.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.sse import ServerSentEvent, SSEDecoder

ENDS = (b"\n", b"\r", b"\r\n")


def decode(pieces: Sequence[bytes]) -> list[ServerSentEvent]:
    """The events of a stream that arrives in these pieces."""
    decoder = SSEDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


def datas(stream: bytes) -> list[str]:
    """What the events of a stream that arrives at once hold."""
    return [event.data for event in decode([stream])]


LINES = [
    "data: {}",
    "data:no space",
    "data:  two spaces",
    "data",
    "data: é 🌶 \u2028 \u0085",
    "event: ping",
    "event",
    "id: 7",
    "id",
    "id: \0",
    "retry: 10",
    ": comment",
    ":",
    "unknown: x",
    "",
    "",
]


@given(
    lines=st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(ENDS)), max_size=30),
    bom=st.booleans(),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_any_cut_gives_the_same_events(lines: list[tuple[str, bytes]], bom: bool, cuts: list[int]) -> None:
    """Cut inside a character, inside CRLF, inside the BOM, or byte by byte, the events are those of the whole."""
    stream = (b"\xef\xbb\xbf" if bom else b"") + b"".join(line.encode() + end for line, end in lines)
    stream += b"data: last\n\n"
    places = sorted({min(cut, len(stream)) for cut in cuts})
    pieces = [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]
    whole = decode([stream])
    assert whole[-1].data.endswith("last")
    assert decode(pieces) == whole
    assert decode([bytes([byte]) for byte in stream]) == whole


@pytest.mark.parametrize("end", ENDS)
def test_every_line_end(end: bytes) -> None:
    """LF, CR and CRLF end a line; two of them an event."""
    assert datas(end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""]) + b"\n") == ["a\nb", "c"]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", ["a"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a\n\n", [" a"]),
        (b"data\n\n", [""]),
        (b"data: a: b\n\n", ["a: b"]),
        (b": ping\n\ndata: a\n\n", ["a"]),
        (b"data: a\n: ping\n\n", ["a"]),
        (b"id: 1\n\n", []),
        (b"retry: 5\n\nevent: x\n\n", []),
        (b"data: cut", []),
        (b"data: cut\n", []),
        (b"Data: a\n\n", []),
        ("data: \u2028\u0085\n\n".encode(), ["\u2028\u0085"]),
        (b"data: \xff\n\n", ["\ufffd"]),
    ],
)
def test_the_standards_corners(stream: bytes, expected: list[str]) -> None:
    """One BOM is dropped, one space after the colon, comments always; an event without data or without end is none."""
    assert datas(stream) == expected


def test_names_and_ids() -> None:
    """A name is for one event, an id goes on until another comes; one with NUL is ignored, an empty one resets."""
    stream = b"event: a\nid: 1\ndata: x\n\ndata: y\n\nid: 2\0\ndata: z\n\nid\ndata: w\n\nevent: lost\n\ndata: v\n\n"
    assert decode([stream]) == [
        ServerSentEvent("x", "a", "1"),
        ServerSentEvent("y", "message", "1"),
        ServerSentEvent("z", "message", "1"),
        ServerSentEvent("w", "message", ""),
        ServerSentEvent("v", "message", ""),
    ]
