"""Decoders that can't be put in bytes: the sliding window keeps the same invariants, and says that it is one."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from engine.detokenizer import IncrementalDetokenizer, Vocabulary
from tests import vocabularies
from tests.engine.detokenizer.reference import decoded
from tests.engine.detokenizer.samples import TEXTS
from tests.engine.detokenizer.strategies import encoded, quick


@cache
def windowed(name: str) -> Vocabulary:
    """A real vocabulary, behind a decoder that only the library can run."""
    tokenizer = Tokenizer.from_file(str(vocabularies.tokenizer_file(name)))
    original = tokenizer.decoder

    class Opaque:
        def decode_chain(self, tokens: list[str]) -> list[str]:
            return [original.decode(tokens)]

    tokenizer.decoder = decoders.Decoder.custom(Opaque())
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert not vocabulary.exact_bytes
    assert "sliding window" in vocabulary.description
    return vocabulary


WINDOWED = ("smollm2", "llama2")


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_at_every_cut(name: str, text: str) -> None:
    """Real text is exact, one id at a time, behind a prompt cut anywhere, and never a half character leaves."""
    ids, whole = encoded(name, text), decoded(name, encoded(name, text), skip_special_tokens=True)
    for at in range(len(ids) + 1):
        before = IncrementalDetokenizer(vocabularies.vocabulary(name)).push(ids[:at])
        detokenizer = IncrementalDetokenizer(windowed(name), ids[:at])
        pieces = [detokenizer.push_token(token_id) for token_id in ids[at:]]
        assert before + "".join(pieces) + detokenizer.finish() == whole


@pytest.mark.parametrize("name", WINDOWED)
@quick
@given(data=st.data())
def test_hidden_and_unknown_ids(name: str, data: st.DataObject) -> None:
    """Special, unknown and negative ids inside a text, and inside its characters, change nothing."""
    ids = encoded(name, "a 𠮷 שלום 🌶")
    noise = st.lists(st.sampled_from([-1, 0, 1, 2, 10**6, 2**70]), max_size=12)
    noisy = [each for token_id in ids for each in [*data.draw(noise), token_id]]
    detokenizer = IncrementalDetokenizer(windowed(name))
    assert detokenizer.push(noisy) + detokenizer.finish() == "a 𠮷 שלום 🌶"


def test_invalid_bytes_do_not_stall() -> None:
    """Bytes that can't become a character are shown after a few tokens at the latest, and later text is not held."""
    stray, text = 131, encoded("smollm2", " fine")
    detokenizer = IncrementalDetokenizer(windowed("smollm2"))
    assert detokenizer.push([stray] * 9 + text) == "\ufffd" * 9 + " fine"
    assert not detokenizer.pending
    assert detokenizer.finish() == ""


def test_end_in_the_middle_of_a_character() -> None:
    """An incomplete character at the end is one U+FFFD, and only at the end."""
    detokenizer = IncrementalDetokenizer(windowed("smollm2"))
    assert (detokenizer.push([19556, 15107, 230]), detokenizer.pending) == ("Hello ", True)
    assert detokenizer.finish() == "\ufffd"


def test_slow_tokenizer() -> None:
    """A `transformers` tokenizer that decodes in Python works at every cut; its special ids are skipped or shown."""
    tokenizer: Any = ByT5Tokenizer()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert not vocabulary.exact_bytes
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        for at in range(0, len(ids), 3):
            prompt_text = text.encode()[:at].decode(errors="ignore")
            detokenizer = IncrementalDetokenizer(vocabulary, ids[:at])
            assert prompt_text + detokenizer.push(ids[at:]) + detokenizer.finish() == text
    shown = IncrementalDetokenizer(vocabulary, skip_special_tokens=False)
    assert shown.push(tokenizer("a")["input_ids"]) == "a</s>"


@pytest.mark.parametrize("name", ["smollm2", "llama2"])
def test_fast_tokenizer(name: str) -> None:
    """A fast `transformers` tokenizer compiles to the tables of its backend, whatever its clean-up of spaces says."""
    path = str(vocabularies.tokenizer_file(name))
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_file=path, clean_up_tokenization_spaces=True)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.exact_bytes
    ids = encoded(name, "spaces , before . these ' s")
    assert IncrementalDetokenizer(vocabulary).push(ids) == "spaces , before . these ' s"


def test_fast_tokenizer_with_decoding_of_its_own() -> None:
    """A fast class that decodes in Python is asked, not bypassed."""

    class Shouting(PreTrainedTokenizerFast):  # type: ignore[misc]
        def _decode(self, *args: Any, **kwargs: Any) -> str:
            return str(super()._decode(*args, **kwargs)).upper()

    tokenizer = Shouting(tokenizer_file=str(vocabularies.tokenizer_file("smollm2")))
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert not vocabulary.exact_bytes
    detokenizer = IncrementalDetokenizer(vocabulary)
    assert "".join(map(detokenizer.push_token, encoded("smollm2", "loud words"))) == "LOUD WORDS"
