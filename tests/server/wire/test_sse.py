"""Frames: one `data:` line of printable ASCII, whatever the text, and a template's frame is like any other."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from client.sse import SSEDecoder
from server.wire import sse

ANY_TEXT = st.text(st.characters(codec=None))
"""Every code point, lone surrogates too."""


@given(ANY_TEXT)
@example("\u2028\u2029\u0085\x00\x7f\r\n")
@example("\ud800")
@example("👩‍👩‍👧‍👦")
@example("data: [DONE]\n\n")
def test_a_frame_is_one_line(text: str) -> None:
    """Nothing in a text ends the line or leaves ASCII, and the client reads back what was written."""
    value = {"text": text, text: [text]}
    frame = sse.frame(value)
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    line = frame.removesuffix(b"\n\n")
    assert all(0x20 <= byte < 0x7F for byte in line)
    (event,) = SSEDecoder().feed(frame)
    assert json.loads(event.data) == value


@given(ANY_TEXT)
@example("\x00hole\x00")
def test_a_template_makes_the_same_frame(text: str) -> None:
    """Filling is only quicker: the bytes are those of the whole value's frame."""
    template = sse.FrameTemplate({"id": "x", "choices": [{"text": sse.FrameTemplate.hole(), "index": 0}]})
    assert template.fill(text) == sse.frame({"id": "x", "choices": [{"text": text, "index": 0}]})


def test_a_template_needs_its_hole() -> None:
    """A value without a place for the text is refused when the template is made."""
    with pytest.raises(ValueError, match="hole"):
        sse.FrameTemplate({"text": ""})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_number_that_json_lacks(number: float) -> None:
    """NaN and the infinities can't slip onto the wire."""
    with pytest.raises(ValueError, match="JSON"):
        sse.frame({"logprob": number})


def test_the_fixed_frames() -> None:
    """The terminal is one event, the keep-alive none."""
    assert [event.data for event in SSEDecoder().feed(sse.DONE)] == ["[DONE]"]
    assert SSEDecoder().feed(sse.KEEPALIVE) == []
