"""Bad words as token sequences, as vLLM makes them; and requests that would leave nothing to choose are refused."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import InvalidRequestError
from engine.prompt.bad_words import banned_sequences, check_choice_left
from engine.types import ModelLimits, SamplingParams

LIMITS = ModelLimits(context_length=100, vocab_size=10, eos_token_ids=frozenset({2}))
SPELLED = {"cat": (1, 2), " cat": (3, 2), "dog": (4,), " dog": (5, 4), "": (), " ": (9,), "ox": (6,), " ox": (6,)}


def encode(text: str) -> tuple[int, ...]:
    return SPELLED[text]


@pytest.mark.parametrize(
    ("words", "sequences"),
    [
        (["cat"], ((1, 2), (3, 2))),
        (["  cat"], ((1, 2), (3, 2))),
        (["dog"], ((4,),)),
        (["ox"], ((6,),)),
        (["cat", "cat", "dog"], ((1, 2), (3, 2), (4,))),
        ([], ()),
    ],
)
def test_spellings(words: list[str], sequences: tuple[tuple[int, ...], ...]) -> None:
    """With and without a space before; the spaced one only where it is other tokens and as many; none twice."""
    assert banned_sequences(words, encode) == sequences


def test_a_word_without_tokens_is_refused() -> None:
    """It could not be banned."""
    with pytest.raises(InvalidRequestError) as refused:
        banned_sequences(["cat", "  "], encode)
    assert refused.value.param == "bad_words"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": {2}, "min_tokens": 1}, "allowed_token_ids"),
        ({"allowed_token_ids": {5}, "min_tokens": 1, "stop_token_ids": frozenset({5})}, "allowed_token_ids"),
        ({"allowed_token_ids": {5}, "bad_words": ((5,),)}, "allowed_token_ids"),
        ({"allowed_token_ids": {5}, "bad_words": ((5, 5),)}, "allowed_token_ids"),
        ({"bad_words": tuple((one,) for one in range(10))}, "bad_words"),
        ({"bad_words": tuple((one,) for one in range(10) if one != 2), "min_tokens": 3}, "bad_words"),
        ({"allowed_token_ids": {2}}, None),
        ({"allowed_token_ids": {2, 3}, "min_tokens": 1}, None),
        ({"allowed_token_ids": {5, 6}, "bad_words": ((5,), (6, 5))}, None),
        ({"min_tokens": 4}, None),
    ],
)
def test_a_request_that_could_leave_nothing_to_choose(fields: dict[str, Any], param: str | None) -> None:
    """It is refused before any work, and only then: a step without a choice would be the server's fault."""
    sampling = SamplingParams(max_tokens=1, **fields)
    if param is None:
        check_choice_left(sampling, LIMITS)
        return
    with pytest.raises(InvalidRequestError) as refused:
        check_choice_left(sampling, LIMITS)
    assert refused.value.param == param
