"""The stop matcher against a search that tries everything: earliest completion, minimal hold-back, any cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.detokenizer import StopMatcher, StopOutcome
from engine.detokenizer.stop_automaton import REMEMBERED_PIECES, compile_stops
from tests.engine.detokenizer.reference import stopped
from tests.engine.detokenizer.strategies import SIZES, cut, quick

# Few letters, so that stop strings overlap, nest and repeat.
LETTERS = "ab\n🌶\u0301"
stop_strings = st.lists(st.text(LETTERS, min_size=1, max_size=6), max_size=8)
texts = st.text(LETTERS, max_size=40)


@quick
@given(stops=stop_strings, text=texts, sizes=SIZES, include=st.booleans(), data=st.data())
def test_agrees_with_brute_force(
    stops: list[str], text: str, sizes: list[int], include: bool, data: st.DataObject
) -> None:
    """After every piece, armed or not, what is released, held and matched is as an exhaustive search says."""
    matcher = StopMatcher(stops, include)
    pieces: list[tuple[str, bool]] = []
    released, matched = "", None
    for piece in cut(text, sizes):
        armed = data.draw(st.booleans())
        pieces.append((str(piece), armed))
        outcome = matcher.push(str(piece), armed=armed)
        released, matched = released + outcome.text, outcome.matched
        expected = stopped(pieces, stops, include=include)
        assert (released, matched, matcher.held_back) == (expected.released, expected.matched, len(expected.held))
    expected = stopped(pieces, stops, include=include)
    assert matcher.finish() == expected.held


@quick
@given(stops=stop_strings, text=texts, sizes=SIZES, include=st.booleans())
def test_independent_of_the_cut_and_of_order(stops: list[str], text: str, sizes: list[int], include: bool) -> None:
    """One text cut in any way, the stop strings in any order: the same text and the same match."""

    def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
        matcher = StopMatcher(stops, include)
        outcomes = [matcher.push(piece) for piece in pieces]
        matched = outcomes[-1].matched if outcomes else None
        return "".join(outcome.text for outcome in outcomes) + matcher.finish(), matched

    whole = run([text], stops)
    assert run(list(text), stops[::-1]) == whole
    assert run([str(piece) for piece in cut(text, sizes)], stops) == whole


def test_nothing_of_the_stop_string_leaves() -> None:
    """Released text before a match never holds a beginning of the stop string that the match turns out to be."""
    matcher = StopMatcher(["DEFGHIJ"])
    assert [matcher.push(piece) for piece in (" ABC", "DEF", "GH", "I", "JKL")] == [
        StopOutcome(" ABC", None),
        StopOutcome("", None),
        StopOutcome("", None),
        StopOutcome("", None),
        StopOutcome("", "DEFGHIJ"),
    ]


@pytest.mark.parametrize(
    ("stops", "text", "released", "matched"),
    [
        (["re", "he"], "there", "t", "he"),
        (["lo", "ell"], "hello", "h", "ell"),
        (["b", "ab", "aab"], "aaab", "a", "aab"),
        (["abc", "abcd"], "abcd", "", "abc"),
        (["abcx", "bc"], "abcd", "a", "bc"),
        (["ab", "ab"], "xab", "x", "ab"),
        (["🌶"], "hot 🌶 pepper", "hot ", "🌶"),
    ],
)
def test_earliest_completion_longest_of_equals(stops: list[str], text: str, released: str, matched: str) -> None:
    """The match that completes first wins; of those on the same character the longest."""
    assert StopMatcher(stops).push(text) == StopOutcome(released, matched)
    assert StopMatcher(stops, include=True).push(text) == StopOutcome(released + matched, matched)


def test_after_a_match_all_is_dropped() -> None:
    """What comes after a match is not released, armed or not, at the end neither."""
    matcher = StopMatcher(["."])
    assert matcher.push("a.b") == StopOutcome("a", ".")
    assert matcher.push("c") == matcher.push("c", armed=False) == StopOutcome("", ".")
    assert (matcher.held_back, matcher.finish()) == (0, "")


def test_unarmed_completions_are_text() -> None:
    """Within `min_tokens` a stop string is ordinary text; one that begins there and completes later still matches."""
    matcher = StopMatcher(["\n", "ab"])
    assert matcher.push("x\n", armed=False) == StopOutcome("x\n", None)
    assert matcher.push("ab a", armed=False) == StopOutcome("ab ", None)
    assert matcher.push("b") == StopOutcome("", "ab")


@pytest.mark.parametrize("stops", [[""], ["a", ""], ["", "a"]])
def test_empty_stop_string_is_refused(stops: list[str]) -> None:
    """An empty stop string would match everywhere: it is refused."""
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(stops)


def test_without_stops_text_passes() -> None:
    """No stop strings: all text goes through at once."""
    matcher = StopMatcher([])
    assert matcher.push("anything") == StopOutcome("anything", None)
    assert (matcher.held_back, matcher.finish()) == (0, "")


def test_a_thousand_stops() -> None:
    """A thousand stop strings with common beginnings are told apart, and each is found."""
    stops = [f"<stop {number}>" for number in range(1000)]
    for number in (0, 7, 70, 700, 999):
        matcher = StopMatcher(stops)
        outcomes = [matcher.push(character) for character in f"text <stop {number}> more"]
        assert "".join(outcome.text for outcome in outcomes) == "text "
        assert outcomes[-1].matched == f"<stop {number}>"


def test_repetitive_text_is_read_once() -> None:
    """The worst text for a naive search, long runs that almost match, takes time in proportion to its length."""
    stop = "a" * 5000 + "b"
    matcher = StopMatcher([stop])
    for _ in range(100):
        matcher.push("a" * 2000)
        assert matcher.held_back <= 5000
    assert matcher.push("b").matched == stop


def test_remembered_pieces_are_bounded() -> None:
    """However many different pieces come by, an automaton remembers no more than it should, and stays right."""
    node = compile_stops(("ab",), False)
    matcher = StopMatcher(["ab"])
    for number in range(REMEMBERED_PIECES + 500):
        assert matcher.push(f"{number} a").text.endswith(f"{number} ")
        assert matcher.push("c").text == "ac"
    assert len(node) <= REMEMBERED_PIECES
    matcher.push("x" * 10_000)
    assert "x" * 10_000 not in node


def test_only_small_automata_are_shared() -> None:
    """Equal short lists of stop strings share what was compiled; long ones end with their request."""
    assert StopMatcher(["stop"]).node is StopMatcher(["stop"]).node
    assert StopMatcher(["x" * 3_000]).node is not StopMatcher(["x" * 3_000]).node
