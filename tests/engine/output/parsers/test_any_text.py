"""Texts made of markers and pieces of calls in any order: no parser raises, loses text or depends on the cut."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.output.parsers import ContentText, Part, ReasoningStart, ToolCallBegin, reasoning_family, tool_family
from engine.output.parsers.scanner import LONGEST_PIECE
from engine.output.parsers.tool_families import TOOL_FAMILIES
from tests.engine.output.parsers.streamed import (
    Make,
    after_each_character,
    assert_independent_of_the_cut,
    calls,
    content,
)
from tests.engine.output.parsers.written_calls import SIZES, cut, quick

PIECES = (
    '{"name": "f", "arguments": {}}', '{"name":"f","parameters":', '{"a": 1}', '{"arguments": [1, "', '"name"', "f",
    "g", "functions.f:0", "function", "[f(a=", "f(", "s=", "a='x", '"""', "1", "True", "\\", "\\u12", "\\x4", "\\07",
    "{", "}", "[", "]", "(", ")", ":", ",", ";", "=", '"', "'", "<", ">", "\n", " ", "\n\n", "text", "日",
    "to=functions.f", "json", "final", "analysis", "```json\n", "```", "\u00a0", "\x00",
)  # fmt: skip
SCHEMAS = {"f": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}, "g": None}
MAKES: dict[str, tuple[Make, tuple[str, ...]]] = {
    **{f"tools {family.name}": (partial(family.parser, SCHEMAS), family.markers) for family in TOOL_FAMILIES},
    **{
        f"reasoning {family.name} {start.value}": (partial(family.parser, start), family.markers)
        for family in map(reasoning_family, ("qwen3", "kimi_k2", "granite", "gpt_oss"))
        for start in ReasoningStart
    },
}


def jumbles(markers: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Markers, whole and begun, and pieces of calls, in any order."""
    begun = st.builds(lambda marker, size: marker[:size], st.sampled_from(markers), st.integers(1, 12))
    return st.lists(st.sampled_from(markers) | begun | st.sampled_from(PIECES), max_size=14).map("".join)


def assert_text_is_kept(text: str, parts: list[Part]) -> None:
    """Without a call all of the text is content; with calls what is content is found in the text, in order."""
    if not any(isinstance(part, ToolCallBegin) for part in parts):
        assert content(parts) == text
    at = 0
    for part in parts:
        if isinstance(part, ContentText):
            at = text.index(part.text, at) + len(part.text)


@pytest.mark.parametrize("case", MAKES)
@quick
@given(data=st.data(), sizes=SIZES)
def test_any_text(case: str, data: st.DataObject, sizes: list[int]) -> None:
    """Whatever comes: the same parts from any cut, calls with dense indices, and no text lost that is no call."""
    make, markers = MAKES[case]
    text = data.draw(jumbles(markers))
    parts = assert_independent_of_the_cut(make, text, cut(text, sizes))
    calls(parts)
    if case.startswith("tools"):
        assert_text_is_kept(text, parts)


@pytest.mark.parametrize("case", MAKES)
@settings(quick, max_examples=8)
@given(data=st.data())
def test_what_has_left_depends_on_the_text_alone(case: str, data: st.DataObject) -> None:
    """After each character of a text, the parts that have left and the characters held are those of one push of it."""
    make, markers = MAKES[case]
    text = data.draw(jumbles(markers))[:60]
    decided = 0
    for length, (parts, held) in enumerate(after_each_character(make, text), 1):
        parser = make()
        assert (list(parser.push(text[:length])), parser.held) == (parts, held)
        assert 0 <= held <= length
        assert length - held >= decided
        decided = length - held


@quick
@given(st.lists(st.sampled_from(["<", "<tool", "_call", ">", "a", " ", "\n", "</tool_call>"]), max_size=9).map("".join))
def test_hold_back_is_minimal(text: str) -> None:
    """Without a call, held is the longest suffix that may become a marker, and whitespace at the start."""
    marker = "<tool_call>"
    parser = tool_family("hermes").parser()
    for length in range(1, len(text) + 1):
        parser.push(text[length - 1])
        seen = text[:length]
        if marker in seen:
            return
        begun = next(size for size in range(len(marker) - 1, -1, -1) if seen.endswith(marker[:size]))
        unspaced = seen[: length - begun]
        assert parser.held == (length if not unspaced.strip() else begun)


@pytest.mark.parametrize("case", MAKES)
def test_after_the_end_nothing_is_taken(case: str) -> None:
    """A finished parser refuses more text, and to finish it again gives nothing."""
    parser = MAKES[case][0]()
    parser.push("text")
    parser.finish()
    assert not parser.finish()
    assert parser.held == 0
    with pytest.raises(ValueError, match="finished"):
        parser.push("more")


def test_long_pieces_are_cut_like_any_other() -> None:
    """One push of a text longer than what is read at once gives what its pieces give."""
    arguments = '{"a": "' + "x" * 3 * LONGEST_PIECE + '"}'
    text = f'<tool_call>{{"arguments": {arguments}, "name": "f"}}</tool_call>' * 2
    parts = assert_independent_of_the_cut(tool_family("hermes").parser, text, cut(text, [1000]))
    assert [call.arguments for call in calls(parts)] == [arguments] * 2


def test_a_long_piece_is_read_in_order() -> None:
    """A hundred thousand characters in one piece, with a call that fails at every turn, are kept."""
    text = "<tool_call>{" * 8_000
    parts = tool_family("hermes").parser().push(text)
    assert content(parts) + "<tool_call>{" == text


def test_content_passes_after_reasoning() -> None:
    """After the closing marker, and where the prompt closed it, the reasoning stage says that it can be left out."""
    parser = reasoning_family("qwen3").parser()
    states = []
    for piece in ("<think>plan", "</think>\n", "answer"):
        states.append(parser.passes_through)
        parser.push(piece)
    assert [*states, parser.passes_through] == [False, False, False, True]
    assert reasoning_family("qwen3").parser(ReasoningStart.AFTER).passes_through
    assert not tool_family("hermes").parser().passes_through
