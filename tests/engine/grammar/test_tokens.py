"""Grammars over real vocabularies: the text that a grammar takes is the text that the detokenizer makes of tokens."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from engine.detokenizer import IncrementalDetokenizer, Vocabulary
from engine.grammar import GrammarTokens
from engine.grammar.lowering import lower
from engine.grammar.tokens import build_matcher, build_tokenizer
from engine.types import ModelLimits, StructureKind
from tests import vocabularies

TEXTS = ['{"name":"Ada", "tags": ["é", "日本", "😀 x"], "n": -1.5e3}', '{"": {"a": [true, null]}}', "{}"]


def limits(vocabulary: Vocabulary, padding: int = 0) -> ModelLimits:
    return ModelLimits(100, vocabulary.size + padding, frozenset({max(vocabulary.special_ids)}))


@pytest.mark.parametrize("name", vocabularies.NAMES)
def test_every_tokenizer_spells_json(name: str) -> None:
    """However a text is cut into tokens, the grammar takes it, and never a control token or a row without one."""
    file = vocabularies.tokenizer_file(name)
    backend, vocabulary = Backend.from_file(str(file)), Vocabulary.from_tokenizer_file(file)
    table = GrammarTokens.of_model(vocabulary, limits(vocabulary, padding=7))
    assert table is not None
    assert len(table.tokens) == vocabulary.size + 7
    tokenizer = build_tokenizer(table)
    matcher = build_matcher(tokenizer, lower(StructureKind.JSON_OBJECT, ""))
    prompt = backend.encode("Answer:\n", add_special_tokens=False).ids
    for text in TEXTS:
        ids = backend.encode("\n" + text, add_special_tokens=False).ids
        while "".join(pieces(vocabulary, prompt, ids)) != text:
            ids = ids[1:]  # what stands for the line's beginning
        one = matcher.deep_copy()
        for token_id in ids:
            allowed = int.from_bytes(one.compute_bitmask(), "little")
            assert allowed >> token_id & 1
            assert not any(allowed >> special & 1 for special in vocabulary.special_ids - set(table.eos_ids))
            assert allowed >> vocabulary.size == 0
            assert one.consume_token(token_id)
        assert one.is_accepting()


def pieces(vocabulary: Vocabulary, prompt: list[int], ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(vocabulary, prompt)
    return [*(detokenizer.push([token_id]) for token_id in ids), detokenizer.finish()]


@pytest.mark.parametrize("name", ["smollm2", "llama2"])
def test_whatever_a_mask_allows_the_detokenizer_writes(name: str) -> None:
    """A walk along allowed tokens gives, detokenized, a text that the grammar takes as bytes."""
    vocabulary = Vocabulary.from_tokenizer_file(vocabularies.tokenizer_file(name))
    table = GrammarTokens.of_model(vocabulary, limits(vocabulary))
    assert table is not None
    start = build_matcher(build_tokenizer(table), lower(StructureKind.REGEX, "[ a-zé日本😀]{30}"))
    (space,) = [token_id for token_id in range(vocabulary.size) if vocabulary.token_bytes(token_id) == b"\n"][:1]
    for seed in range(5):
        source, matcher, ids = random.Random(seed), start.deep_copy(), list[int]()
        while not matcher.is_stopped():
            allowed = int.from_bytes(matcher.compute_bitmask(), "little")
            choices = [token_id for token_id in range(vocabulary.size) if allowed >> token_id & 1]
            ids.append(source.choice(choices))
            assert matcher.consume_token(ids[-1])
        text = "".join(pieces(vocabulary, [space], ids))
        assert len(text) == 30
        assert set(text) <= set(" abcdefghijklmnopqrstuvwxyzé日本😀")


class Opaque:
    """A decoder in Python."""

    def decode_chain(self, tokens: list[str]) -> list[str]:
        return tokens


def test_a_decoder_of_unknown_bytes_has_no_grammar() -> None:
    """Nor a model that never ends: what a grammar allows could not be told, or not be ended."""
    backend = Backend(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    backend.decoder = decoders.Decoder.custom(Opaque())
    windowed = Vocabulary.from_tokenizer(backend)
    assert not windowed.exact_bytes
    assert GrammarTokens.of_model(windowed, ModelLimits(10, 2, frozenset({1}))) is None
    exact = Vocabulary.from_tokenizer_file(vocabularies.tokenizer_file("smollm2"))
    assert GrammarTokens.of_model(exact, ModelLimits(10, exact.size, frozenset())) is None
