"""Structured output of the demo model: whatever it would say, its answers keep to the structure.

A longer run than this one is `python benchmarks/structured.py validity`.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.backends.transformers import TransformersBackend
from engine.config import EngineConfig
from engine.detokenizer import Vocabulary
from engine.grammar import CallForm, GrammarCompiler, GrammarTokens, call_structure
from engine.tokenizer import Tokenizer
from engine.types import EngineRequest, FinishReason, SamplingParams, Structure, StructureKind
from tests.engine.backends.transformers_runs import Answer, run
from tests.engine.grammar.ten_schemas import SCHEMAS, prompt, structure, validates

pytestmark = [pytest.mark.anyio, pytest.mark.real_model]
REGEX = Structure(StructureKind.REGEX, r"[A-Z][a-z]{2,9}, \d{4}")
CHOICE = Structure(StructureKind.CHOICE, '["positive", "negative", "très négatif 😀"]')
EBNF = Structure(StructureKind.GRAMMAR, 'root ::= sum "\\n"\nsum ::= [1-9] (" + " [1-9]){1,3}\n')
OBJECT = Structure(StructureKind.JSON_OBJECT)


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer.from_folder(demo_model)


@pytest.fixture(scope="module")
async def backend(demo_model: Path) -> AsyncIterator[TransformersBackend]:
    backend = TransformersBackend(EngineConfig(max_model_len=1024, num_kv_blocks=320, max_num_seqs=16), demo_model)
    await backend.start()
    yield backend
    await backend.close()


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer, backend: TransformersBackend) -> Iterator[GrammarCompiler]:
    vocabulary = Vocabulary.from_tokenizer(tokenizer.backend)
    compiler = GrammarCompiler(GrammarTokens.of_model(vocabulary, backend.limits))
    yield compiler
    compiler.close()


class Asking:
    """Makes requests out of questions, each with an id of its own."""

    def __init__(self, compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
        self._compiler = compiler
        self._tokenizer = tokenizer
        self._asked = 0

    def __call__(self, question: str, asked: Structure | None, **sampling: object) -> EngineRequest:
        self._asked += 1
        params = SamplingParams(**{"max_tokens": 400, "seed": self._asked, **sampling})  # type: ignore[arg-type]
        grammar = None if asked is None else self._compiler.compile(asked)
        return EngineRequest(f"asked-{self._asked}", prompt(self._tokenizer, question), params, grammar=grammar)

    def text(self, answer: Answer) -> str:
        return self._tokenizer.decode(answer.token_ids, skip_special_tokens=True)


@pytest.fixture
def asking(compiler: GrammarCompiler, tokenizer: Tokenizer) -> Asking:
    return Asking(compiler, tokenizer)


async def test_answers_of_ten_schemas_validate(backend: TransformersBackend, asking: Asking) -> None:
    """At temperature 1, all in one batch: each that ends by itself is JSON and valid; nearly all end."""
    names = list(SCHEMAS)
    requests = [asking(SCHEMAS[name][0], structure(name), temperature=1.0, max_tokens=120) for name in names]
    answers = await run(backend, *requests)
    ended = 0
    for name, answer in zip(names, answers, strict=True):
        assert answer.error is None
        if answer.finish_reason is FinishReason.STOP:
            ended += 1
            assert validates(name, asking.text(answer)), (name, asking.text(answer))
    assert ended >= len(names) - 1


async def test_a_mixed_batch_keeps_apart(backend: TransformersBackend, asking: Asking) -> None:
    """Every kind of structure and none at all in the same steps; who has none says what it says alone."""
    free = asking("Tell me a story.", None, max_tokens=40, temperature=0.0)
    (alone,) = await run(backend, free)
    again = asking("Tell me a story.", None, max_tokens=40, temperature=0.0)
    requests = [asking("Answer.", one, temperature=1.5) for one in (REGEX, CHOICE, EBNF)]
    regex, choice, ebnf, story = await run(backend, *requests, again)
    assert re.fullmatch(REGEX.text, asking.text(regex))
    assert asking.text(choice) in json.loads(CHOICE.text)
    assert re.fullmatch(r"[1-9]( \+ [1-9]){1,3}\n", asking.text(ebnf))
    assert {answer.finish_reason for answer in (regex, choice, ebnf)} == {FinishReason.STOP}
    assert {answer.stop_token_id for answer in (regex, choice, ebnf)} == {answer.token_ids[-1] for answer in [regex]}
    assert story.token_ids == alone.token_ids


async def test_a_small_model_calls_tools(backend: TransformersBackend, asking: Asking) -> None:
    """Whatever it would rather say: one call of one of the tools, with arguments that fit."""
    city = {"properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    calls = call_structure({"weather": city, "time": city}, CallForm(parallel=False))
    requests = [asking("Tell me a joke.", calls, temperature=1.0) for _ in range(3)]
    for answer in await run(backend, *requests):
        text = asking.text(answer).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        call = json.loads(text)
        assert call["name"] in {"weather", "time"}
        assert call["arguments"] in ({"city": "Rome"}, {"city": "Oslo"})


async def test_a_cut_stays_a_cut(backend: TransformersBackend, asking: Asking) -> None:
    """max_tokens ends an answer in the middle, says so, and what there is begins a sentence."""
    whole, cut = await run(
        backend,
        *[asking("Describe a person.", OBJECT, temperature=0.0, max_tokens=limit) for limit in (100, 5)],
    )
    assert cut.finish_reason is FinishReason.LENGTH
    assert cut.token_ids == whole.token_ids[:5]
    assert asking.text(cut).startswith("{")


async def test_a_preempted_sequence_stands_where_it_stood(demo_model: Path, asking: Asking) -> None:
    """What it had generated is prefilled again, and the grammar is not told of it twice."""
    lists = Structure(StructureKind.REGEX, r"(\d{1,3}, ){10}\d{1,3}")
    questions = ["Count.", "Count to a hundred.", "Give numbers."]
    settings = EngineConfig(max_num_seqs=8, max_model_len=128, num_kv_blocks=8, block_size=16)
    crowded = TransformersBackend(settings, demo_model)
    await crowded.start()
    try:
        requests = [asking(question, lists, max_tokens=70, seed=7) for question in questions]
        answers = await run(crowded, *requests)
        assert crowded.stats().preemptions_total > 0
    finally:
        await crowded.close()
    for answer in answers:
        assert answer.finish_reason is FinishReason.STOP
        assert re.fullmatch(lists.text, asking.text(answer))
