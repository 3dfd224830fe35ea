"""Compiling vocabularies: from files and objects alike, quickly, and within bounds."""

from __future__ import annotations

import itertools
import json
import time
import timeit
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from engine.detokenizer import IncrementalDetokenizer, Vocabulary
from engine.detokenizer.chain import build_chain
from engine.detokenizer.transducer import Transducer
from engine.errors import ModelLoadError
from tests import vocabularies
from tests.engine.detokenizer.strategies import encoded, quick, token_ids


@pytest.mark.parametrize("name", vocabularies.NAMES)
def test_file_and_object_agree(name: str) -> None:
    """The same vocabulary comes out of the file, read by us, and of the library's object."""
    ours, theirs = vocabularies.vocabulary(name), Vocabulary.from_tokenizer(vocabularies.tokenizer(name))
    assert (ours.size, ours.special_ids, ours.exact_bytes) == (theirs.size, theirs.special_ids, True)
    assert ours.description == theirs.description
    assert (ours._table.tokens, ours._table.decoder) == (theirs._table.tokens, theirs._table.decoder)


def test_size_and_specials() -> None:
    """Size counts up to the highest id, added ones included; special ids are those that the tokenizer calls so."""
    vocabulary = vocabularies.vocabulary("qwen3")
    assert vocabulary.size == 151_669
    assert 151_643 in vocabulary.special_ids
    assert 151_667 not in vocabulary.special_ids
    assert vocabulary.token_bytes(151_667) == b"<think>"


def test_compiles_in_under_a_second() -> None:
    """A vocabulary of 262,144 tokens compiles in under a second of CPU time, from the file and from the object."""
    path, tokenizer = vocabularies.tokenizer_file("gemma3"), vocabularies.tokenizer("gemma3")
    for compile_it in (lambda: Vocabulary.from_tokenizer_file(path), lambda: Vocabulary.from_tokenizer(tokenizer)):
        assert min(timeit.repeat(compile_it, timer=time.process_time, number=1, repeat=3)) < 1


@quick
@given(data=st.data())
def test_remembered_transitions_are_bounded(data: st.DataObject) -> None:
    """With room for twenty transitions the text is the same, and no more than twenty are kept."""
    vocabulary = vocabularies.vocabulary("smollm2")
    ids = data.draw(token_ids("smollm2"))
    transducer = Transducer(build_chain(vocabulary._table.decoder), vocabulary._table.tokens, frozenset(), limit=20)
    state, text = transducer.after_prompt(()), ""
    for token_id in ids:
        piece, state = state[token_id]
        text += piece
        assert sum(map(len, transducer._states.values())) <= 20
    expected = IncrementalDetokenizer(vocabulary, skip_special_tokens=False)
    assert text + state.finish() == expected.push(ids) + expected.finish()


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"vocab": 3}}', "no json"])
def test_no_tokenizer_file(tmp_path: Path, content: str) -> None:
    """What is no tokenizer file is refused with an error that names it."""
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(ModelLoadError, match=r"broken\.json"):
        Vocabulary.from_tokenizer_file(path)
    with pytest.raises(ModelLoadError, match=r"missing\.json"):
        Vocabulary.from_tokenizer_file(tmp_path / "missing.json")


def odd_tokenizer() -> Tokenizer:
    """Added tokens of every kind: of byte letters and not, normalized, special by text, doubled, over the model's."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "Ġ": 1, "é": 2, "<s>": 3, "Ã": 4, "©": 5}, []))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Prepend("Ġ")])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(["éé", AddedToken("x é", normalized=False), "Ġz", "▁q", "a", "éé"])
    tokenizer.add_special_tokens(["<s>", "<é>", AddedToken("Å", normalized=True)])
    return tokenizer


@pytest.mark.parametrize("skip", [True, False])
def test_odd_added_tokens(tmp_path: Path, skip: bool) -> None:
    """Added tokens come out as the library decodes them, alone and together, from object and file."""
    tokenizer = odd_tokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    reloaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    every_id = list(range(tokenizer.get_vocab_size()))
    for ids in [[token_id] for token_id in every_id] + [every_id, every_id[::-1]]:
        expected = reloaded.decode(ids, skip_special_tokens=skip)
        assert tokenizer.decode(ids, skip_special_tokens=skip) == expected
        for vocabulary in (
            Vocabulary.from_tokenizer(tokenizer),
            Vocabulary.from_tokenizer_file(tmp_path / "tokenizer.json"),
        ):
            detokenizer = IncrementalDetokenizer(vocabulary, skip_special_tokens=skip)
            assert detokenizer.push(ids) + detokenizer.finish() == expected


def test_file_with_gaps_and_doubles(tmp_path: Path) -> None:
    """Ids with gaps between them, and pieces that come twice, are read as the library reads them."""
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    file = {
        "version": "1.0",
        "added_tokens": [{"id": 9, "content": "new", **added}, {"id": 1, "content": "a", **added, "special": True}],
        "decoder": {"type": "Fuse"},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -1.0], ["a", -2.0]]},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file))
    tokenizer = Tokenizer.from_file(str(path))
    for vocabulary in (Vocabulary.from_tokenizer_file(path), Vocabulary.from_tokenizer(tokenizer)):
        for skip, token_id in itertools.product((True, False), range(12)):
            detokenizer = IncrementalDetokenizer(vocabulary, skip_special_tokens=skip)
            assert detokenizer.push_token(token_id) == tokenizer.decode([token_id], skip_special_tokens=skip)


def test_bytes_of_partial_characters() -> None:
    """An id that is a part of a character has that part's bytes, so that logprobs' bytes join to the text's."""
    for name in vocabularies.NAMES:
        vocabulary = vocabularies.vocabulary(name)
        ids = encoded(name, "a 🌶𒀀 é")
        assert b"".join(map(vocabulary.token_bytes, ids)).lstrip() == "a 🌶𒀀 é".encode()
