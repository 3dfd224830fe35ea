"""Lowering: seeds of their own for each choice, and an answer's length bounded by what the context leaves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from engine.errors import ContextLengthError, InvalidRequestError
from engine.prompt.lowering import GenerateRequest, lower
from engine.prompt.renderer import PromptRenderer
from engine.types import EngineRequest, ModelLimits, SamplingParams, Structure, StructureKind, TextParams
from tests.engine.engines import simulated_backend

LIMITS = ModelLimits(context_length=100, vocab_size=50)
NO_RENDERER = cast("PromptRenderer", None)
"""Prompts of token ids need none."""


def lowered(*, seed: int | None = None, limits: ModelLimits = LIMITS, **fields: Any) -> list[EngineRequest]:
    sampling = SamplingParams(max_tokens=1, seed=seed)
    return lower(GenerateRequest("r", ((1, 2, 3),), sampling, TextParams(), **fields), NO_RENDERER, limits)


def test_every_choice_has_a_seed_of_its_own() -> None:
    """Over several seeds, negative ones too, no two choices share one; the first has the client's; all repeat."""
    drawn = {seed: [request.sampling.seed for request in lowered(seed=seed, n=4)] for seed in (-2, -1, 0, 1, 5, 6)}
    every = [seed for seeds in drawn.values() for seed in seeds]
    assert len(set(every)) == len(every)
    assert [seeds[0] for seeds in drawn.values()] == list(drawn)
    assert drawn[5] == [request.sampling.seed for request in lowered(seed=5, n=4)]
    assert [request.sampling.seed for request in lowered(n=2)] == [None, None]


def test_without_max_tokens_an_answer_may_fill_the_context() -> None:
    """And not one token more; asking for more is refused under the client's own field."""
    assert lowered()[0].sampling.max_tokens == 97
    assert lowered(max_tokens=97)[0].sampling.max_tokens == 97
    with pytest.raises(ContextLengthError) as refused:
        lowered(max_tokens=98, max_tokens_field="max_completion_tokens")
    assert refused.value.param == "max_completion_tokens"


def test_the_context_is_what_the_blocks_hold_if_that_is_less() -> None:
    """A small pool of KV blocks bounds the default length, so that a request without `max_tokens` is served."""
    backend = simulated_backend(num_kv_blocks=4, block_size=16)
    (request,) = lowered(limits=backend.limits)
    assert request.sampling.max_tokens == 4 * 16 - 3
    backend.check(request)


def test_all_choices_share_one_grammar() -> None:
    """It is compiled once for them; without a structure there is none."""
    structure = Structure(StructureKind.REGEX, "a+", "guided_regex")
    first, *others = lowered(n=3, structure=structure)
    assert first.grammar is not None
    assert (first.grammar.structure, first.grammar.compiled) == (structure, None)
    assert all(other.grammar is first.grammar for other in others)
    assert lowered()[0].grammar is None


@pytest.mark.parametrize(
    ("keep", "max_tokens", "prompt"),
    [
        (None, None, tuple(range(20))),
        (5, None, (15, 16, 17, 18, 19)),
        (1, None, (19,)),
        (20, None, tuple(range(20))),
        (99, None, tuple(range(20))),
        (-1, None, tuple(range(20))),
        (-1, 90, tuple(range(10, 20))),
    ],
)
def test_a_prompt_is_cut_to_its_end(keep: int | None, max_tokens: int | None, prompt: tuple[int, ...]) -> None:
    """Its last tokens stay, all where there are no more; -1 leaves room for the answer."""
    (request,) = cut(range(20), keep, max_tokens)
    assert tuple(request.prompt_token_ids) == prompt


def test_a_prompt_beyond_the_context_can_be_cut() -> None:
    """Without `max_tokens`, -1 leaves room for one token; what is not cut enough is refused as ever."""
    (request,) = cut([7] * 500, -1)
    assert (len(request.prompt_token_ids), request.sampling.max_tokens) == (99, 1)
    with pytest.raises(ContextLengthError):
        cut([7] * 500, None)
    for keep in (0, 100, 10**9):
        with pytest.raises(InvalidRequestError) as refused:
            cut([7] * 500, keep)
        assert refused.value.param == "truncate_prompt_tokens"


def cut(prompt: Iterable[int], keep: int | None, max_tokens: int | None = None) -> list[EngineRequest]:
    """A prompt of these ids, cut."""
    sampling = SamplingParams(max_tokens=1)
    request = GenerateRequest(
        "r", (tuple(prompt),), sampling, TextParams(), max_tokens=max_tokens, truncate_prompt_tokens=keep
    )
    return lower(request, NO_RENDERER, LIMITS)
