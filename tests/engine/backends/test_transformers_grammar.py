"""The sampler with grammars on made-up logits: what is forbidden, when it ends, and with what it composes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.backends.simulated import SimulatedBackend
from engine.backends.transformers.sampler import choose
from engine.backends.transformers.sequence import Sequence
from engine.errors import UnsupportedParameterError
from engine.grammar import GrammarCompiler
from engine.types import EngineRequest, Grammar, SamplingParams, Structure, StructureKind
from tests.engine.engines import simulated_backend
from tests.engine.grammar.byte_tokens import BYTE_TOKENS, EOS, compiled, is_beginning, is_sentence

CPU = torch.device("cpu")
VOCABULARY = 260
"""A few rows more than there are tokens, as models have."""
REGEX = StructureKind.REGEX


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(BYTE_TOKENS)
    yield compiler
    compiler.close()


def sequence(grammar: Grammar | None, **sampling: Any) -> Sequence:
    params = SamplingParams(**{"max_tokens": 100, "temperature": 1.0, "seed": 1, **sampling})
    return Sequence(EngineRequest("one", (5, 6), params, grammar=grammar), frozenset({EOS}), CPU)


def logits(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def generate(*sequences: Sequence, steps: int = 60) -> list[list[int]]:
    """What each sequence gets, a step at a time for all that have not ended, as the engine does it."""
    answers: list[list[int]] = [[] for _ in sequences]
    for step in range(steps):
        live = [row for row, answer in enumerate(answers) if not answer or answer[-1] not in sequences[row].stop_ids]
        if not live:
            break
        scores = logits(step, len(sequences))[live]
        choose(scores, [sequences[row] for row in live])
        for row, token_id in zip(live, scores.argmax(dim=-1).tolist(), strict=True):
            assert sequences[row].failure is None
            sequences[row].append(token_id)
            answers[row].append(token_id)
    return answers


def text_of(answer: list[int]) -> str:
    return bytes(token_id for token_id in answer if token_id < EOS).decode()


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {},
        {"temperature": 3.0},
        {"top_k": 2, "top_p": 0.5, "min_p": 0.2},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 1.5},
        {"logit_bias": {ord("x"): 100.0, EOS: 100.0, ord("a"): -100.0}},
        {"logprobs": 3},
    ],
    ids=str,
)
def test_whatever_else_is_asked_the_grammar_holds(compiler: GrammarCompiler, sampling: dict[str, Any]) -> None:
    """Each answer is a sentence and then the end, or a beginning where it was cut."""
    for pattern in ("[ab]{3,9}", "(yes|no)", "a(b|cd){2,}"):
        grammar = compiled(compiler, REGEX, pattern)
        (answer,) = generate(sequence(grammar, **sampling))
        ended = answer[-1] == EOS
        assert is_sentence(grammar, text_of(answer)) if ended else is_beginning(grammar, text_of(answer))
        assert answer.count(EOS) == ended


def test_rows_keep_to_their_own_grammars(compiler: GrammarCompiler) -> None:
    """Each row of a step follows its own from where it stands, and a row without one is left alone."""
    grammars = [compiled(compiler, REGEX, pattern) for pattern in ("a{4}", "b{2}", "[cd]{8}", "a{4}")]
    rows = [sequence(grammar, seed=number) for number, grammar in enumerate(grammars)]
    got = generate(sequence(None, seed=9), *rows, steps=20)
    assert [text_of(answer) for answer in got[1:3]] == ["aaaa", "bb"]
    assert got[1] == got[4]
    assert is_sentence(grammars[2], text_of(got[3]))
    scores = logits(1, 2)
    before = scores.clone()
    choose(scores, [sequence(None, temperature=0.0), sequence(grammars[0], temperature=0.0)])
    assert torch.equal(scores[0], before[0])
    assert int(scores[1].argmax()) == ord("a")


def test_a_step_without_grammars_is_untouched() -> None:
    """Plain greedy rows are still left alone."""
    scores = logits(1, 2)
    before = scores.clone()
    choose(scores, [sequence(None, temperature=0.0), sequence(None, temperature=0.0)])
    assert torch.equal(scores, before)


def test_the_same_seed_gives_the_same_answer(compiler: GrammarCompiler) -> None:
    """Also in other company, and another seed another one."""
    grammar = compiled(compiler, REGEX, "[a-z]{20}")
    answers = [generate(sequence(grammar, seed=seed))[0] for seed in (3, 3, 4)]
    assert answers[0] == answers[1] != answers[2]


def test_logprobs_are_the_models_own(compiler: GrammarCompiler) -> None:
    """Of its whole distribution, before the mask: the likeliest may be tokens that the grammar forbids."""
    one = sequence(compiled(compiler, REGEX, "z"), logprobs=2)
    scores = logits(5)
    expected = scores[0].log_softmax(-1)
    choose(scores, [one])
    assert one.logprobs is not None
    assert one.logprobs.chosen == pytest.approx(float(expected[ord("z")]))
    assert [token_id for token_id, _ in one.logprobs.top] == expected.topk(2).indices.tolist()


@pytest.mark.parametrize("held", [{"min_tokens": 10}, {"ignore_eos": True}], ids=str)
def test_the_end_is_held_back_while_the_sentence_can_go_on(compiler: GrammarCompiler, held: dict[str, Any]) -> None:
    """`min_tokens` and `ignore_eos` make an answer longer where the grammar lets them, and never anything but whole."""
    eager = {"logit_bias": {EOS: 100.0}}
    (open_ended,) = generate(sequence(compiled(compiler, REGEX, "a*"), **eager, **held), steps=20)
    assert open_ended[:10] == [ord("a")] * 10
    assert (EOS in open_ended) is ("min_tokens" in held)
    (bounded,) = generate(sequence(compiled(compiler, REGEX, "a{1,4}"), **eager, **held), steps=20)
    assert bounded == [ord("a")] * 4 + [EOS]
    (at_once,) = generate(sequence(compiled(compiler, REGEX, "a*"), **eager), steps=20)
    assert at_once == [EOS]


def test_a_clients_own_stop_token_is_not_ignored_with_the_end(compiler: GrammarCompiler) -> None:
    """`ignore_eos` is about the model's ends; a stop token that the grammar allows may come at any time."""
    one = sequence(compiled(compiler, REGEX, "[ab]*"), ignore_eos=True, stop_token_ids=frozenset({ord("b")}))
    (answer,) = generate(one)
    assert answer[-1] == ord("b")
    assert set(answer[:-1]) <= {ord("a")}


def test_a_row_that_left_its_grammar_fails_alone(compiler: GrammarCompiler) -> None:
    """It never ends as if it were complete, and its neighbour goes on."""
    grammar = compiled(compiler, REGEX, "a{9}")
    bad, good = sequence(grammar), sequence(grammar)
    bad.append(ord("z"))
    scores = logits(1, 2)
    choose(scores, [bad, good])
    assert bad.failure is not None
    assert "grammar" in bad.failure
    assert good.failure is None
    assert int(scores[1].argmax()) == ord("a")


def test_a_bias_that_leaves_nothing_fails_the_row_alone(compiler: GrammarCompiler) -> None:
    """The client's contradiction is its own: no token is invented."""
    grammar = compiled(compiler, REGEX, "a")
    bad, good = sequence(grammar, logit_bias={ord("a"): -float("inf")}), sequence(grammar)
    scores = logits(1, 2)
    choose(scores, [bad, good])
    assert bad.failure is not None
    assert good.failure is None
    assert int(scores[1].argmax()) == ord("a")


def test_characters_of_many_bytes_stay_whole(compiler: GrammarCompiler) -> None:
    """A grammar speaks of characters, tokens are bytes: no answer ends inside a character."""
    grammar = compiled(compiler, StructureKind.CHOICE, json.dumps(["é", "日本", "😀"]))
    for seed in range(20):
        (answer,) = generate(sequence(grammar, seed=seed))
        assert text_of(answer) in {"é", "日本", "😀"}


def test_the_simulated_engine_refuses_a_grammar_by_its_field() -> None:
    """There is no model that could follow it."""
    backend: SimulatedBackend = simulated_backend()
    grammar = Grammar(Structure(StructureKind.JSON_OBJECT, param="response_format"))
    with pytest.raises(UnsupportedParameterError, match="response_format"):
        backend.check(EngineRequest("one", (1,), SamplingParams(max_tokens=1), grammar=grammar))
