"""What a request takes out of the vocabulary is never chosen: all but allowed ids, and what completes a bad word."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from tests.engine.backends.sampled_rows import VOCABULARY, drawn_from, logits, sequence, step


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_only_allowed_ids_are_chosen() -> None:
    """Whatever the others' logits and the parameters beside: greedy, drawn, biased, penalized."""
    row = logits()
    allowed = frozenset({3, 11, 40})
    likeliest = max(allowed, key=lambda token_id: float(row[token_id]))
    assert step(row, sequence(allowed_token_ids=allowed)) == likeliest
    assert step(row, sequence(allowed_token_ids=frozenset({7}), logit_bias={9: 100.0})) == 7
    assert set(drawn_from(row, 300, temperature=2.0, allowed_token_ids=allowed)) == allowed
    one = sequence(allowed_token_ids=allowed, frequency_penalty=2.0, repetition_penalty=1.5)
    assert {step(row, one) for _ in range(30)} <= allowed


def test_bad_words_are_never_completed() -> None:
    """A bad word of one token never comes; a longer one comes up to its last token, which then is any other."""
    row = torch.zeros(VOCABULARY)
    row[[4, 5, 6, 7]] = torch.tensor([9.0, 8.0, 7.0, 6.0])
    assert step(row, sequence(bad_words=((4,),))) == 5
    one = sequence(bad_words=((4, 4, 4), (5,)))
    assert [step(row, one) for _ in range(6)] == [4, 4, 6, 4, 4, 6]
    many = [sequence(seed=seed, temperature=1.0, bad_words=((4, 5), (6,))) for seed in range(50)]
    answers: list[list[int]] = [[step(row, drawn) for _ in range(12)] for drawn in many]
    assert all(6 not in answer and (4, 5) not in set(pairwise(answer)) for answer in answers)
    assert any({4, 5} <= set(answer) for answer in answers)


def test_the_prompt_begins_no_bad_word() -> None:
    """As in vLLM: only what was generated counts."""
    row = torch.zeros(VOCABULARY)
    row[5] = 1.0
    assert step(row, sequence(prompt=(4,), bad_words=((4, 5),))) == 5
