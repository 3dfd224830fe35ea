"""What a processor says that it holds back is the text that was decoded and not given out, and a begun character."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.detokenizer import IncrementalDetokenizer
from engine.output.processor import SequenceProcessor
from engine.types import EngineRequest, SamplingParams, SequenceOutput, TextParams
from tests.vocabularies import vocabulary

HELLO, WORLD = 19556, 905
BEGUN = (187, 249, 230)
"""Tokens that are parts of characters."""


@given(
    st.lists(st.lists(st.sampled_from([HELLO, WORLD, *BEGUN]), min_size=1, max_size=3), max_size=6),
    st.sampled_from([(), ("Hello world!",), ("Hello" * 3 + "x", " worldHello?")]),
)
def test_held_back_characters(steps: Sequence[list[int]], stop: tuple[str, ...]) -> None:
    """After each step, for any stop strings that do not complete."""
    request = EngineRequest("r", [1], SamplingParams(max_tokens=1_000))
    processor = SequenceProcessor(vocabulary("smollm2"), request, TextParams(stop), 0)
    reference = IncrementalDetokenizer(vocabulary("smollm2"), [1])
    withheld = 0
    for token_ids in steps:
        withheld += len(reference.push(token_ids))
        withheld -= len(processor.feed(SequenceOutput("r", token_ids)).text)
        assert processor.held_back_characters == withheld + reference.pending
