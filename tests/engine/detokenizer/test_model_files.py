"""SentencePiece, tekken and tiktoken files, read without their makers' libraries, give the text that those give."""

from __future__ import annotations

import base64
import io
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from engine.detokenizer import IncrementalDetokenizer, Vocabulary
from engine.errors import ModelLoadError
from tests import vocabularies
from tests.engine.detokenizer.samples import TEXTS
from tests.engine.detokenizer.strategies import SIZES, cut, quick

MODELS = ("mistral_instruct_tokenizer_241114.model.v7", "tokenizer.model.v1", "no dummy prefix", "extra spaces removed")


@cache
def model_file(name: str) -> bytes:
    """A real model, or a small one trained with other settings."""
    if name in vocabularies.MISTRAL_SHA256_PREFIXES:
        return vocabularies.mistral_file(name).read_bytes()
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=buffer,
        vocab_size=700,
        byte_fallback=True,
        hard_vocab_limit=False,
        add_dummy_prefix=name != "no dummy prefix",
        remove_extra_whitespaces=name != "no dummy prefix",
        user_defined_symbols=["<tool>"],
        minloglevel=2,
    )
    return buffer.getvalue()


@cache
def sentencepiece_reference(name: str) -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=model_file(name))


@cache
def sentencepiece_vocabulary(name: str) -> Vocabulary:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.model"
        path.write_bytes(model_file(name))
        return Vocabulary.from_sentencepiece_file(path)


@pytest.mark.parametrize("name", MODELS)
@quick
@given(data=st.data(), sizes=SIZES)
def test_sentencepiece(name: str, data: st.DataObject, sizes: list[int]) -> None:
    """Any ids in any steps, behind any prompt, give SentencePiece's own text, but for bytes that are no valid UTF-8."""
    reference, vocabulary = sentencepiece_reference(name), sentencepiece_vocabulary(name)
    assert (vocabulary.exact_bytes, vocabulary.size) == (True, reference.get_piece_size())
    marks = [reference.piece_to_id(piece) for piece in ("▁", "▁▁", "▁a", "<s>", "<unk>", "<tool>")]
    runs = st.one_of(
        st.lists(st.sampled_from(marks), max_size=4),
        st.sampled_from(TEXTS).map(lambda text: list(reference.encode(text[:9]))),
        st.integers(0, 0x10FFFF)
        .filter(lambda point: not 0xD800 <= point < 0xE000)
        .map(lambda point: as_bytes(name, point)),
        st.lists(
            st.integers(0, vocabulary.size - 1).filter(lambda token_id: not reference.is_byte(token_id)), max_size=6
        ),
    )
    ids = [token_id for run in data.draw(st.lists(runs, max_size=5)) for token_id in run]
    at = data.draw(st.integers(0, len(ids)))
    before = IncrementalDetokenizer(vocabulary).push(ids[:at])
    detokenizer = IncrementalDetokenizer(vocabulary, ids[:at])
    text = "".join(detokenizer.push(step) for step in cut(ids[at:], sizes)) + detokenizer.finish()
    assert before + text == reference.decode(ids)


def as_bytes(name: str, point: int) -> list[int]:
    """A character in byte pieces."""
    reference = sentencepiece_reference(name)
    return [reference.piece_to_id(f"<0x{byte:02X}>") for byte in chr(point).encode()]


def test_sentencepiece_shows_control_pieces() -> None:
    """Control pieces are the special tokens: shown when they are not skipped."""
    vocabulary = sentencepiece_vocabulary("tokenizer.model.v1")
    ids = [1, *sentencepiece_reference("tokenizer.model.v1").encode("a b"), 2]
    assert IncrementalDetokenizer(vocabulary).push(ids) == "a b"
    assert IncrementalDetokenizer(vocabulary, skip_special_tokens=False).push(ids) == "<s> a b</s>"
    assert vocabulary.special_ids == {1, 2}


@cache
def tekken() -> Vocabulary:
    return Vocabulary.from_tekken_file(vocabularies.mistral_file("tekken_240911.json"))


@cache
def tekken_bytes() -> dict[int, bytes]:
    """Each ordinary id's bytes, read the plain way."""
    file = json.loads(vocabularies.mistral_file("tekken_240911.json").read_text())
    return {1000 + token["rank"]: base64.b64decode(token["token_bytes"]) for token in file["vocab"][:130_072]}


@quick
@given(ids=st.lists(st.one_of(st.integers(-2, 132_000), st.integers(1000, 1400), st.integers(0, 1100))), sizes=SIZES)
def test_tekken(ids: list[int], sizes: list[int]) -> None:
    """Any ids give their bytes' text; special ids are skipped, inside a character too, and unknown ones add nothing."""
    assert (tekken().exact_bytes, tekken().size) == (True, 131_072)
    detokenizer = IncrementalDetokenizer(tekken())
    text = "".join(detokenizer.push(step) for step in cut(ids, sizes)) + detokenizer.finish()
    assert text == b"".join(tekken_bytes().get(token_id, b"") for token_id in ids).decode(errors="replace")


def test_tekken_specials() -> None:
    """Special tokens have their names, or a stand-in's."""
    shown = IncrementalDetokenizer(tekken(), skip_special_tokens=False)
    assert shown.push([1, 3, 999, 1000 + ord("x")]) == "<s>[INST]<SPECIAL_999>x"
    assert tekken().special_ids == frozenset(range(1000))


def test_tiktoken(tmp_path: Path) -> None:
    """A tiktoken file's tokens are bytes by rank; special tokens are named by the caller."""
    path = tmp_path / "small.tiktoken"
    tokens = [bytes([byte]) for byte in range(256)] + ["né".encode()]
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))
    vocabulary = Vocabulary.from_tiktoken_file(path, {"<|end|>": 300})
    ids = [0xF0, 0x9F, 300, 0x8C, 0xB6, 256, 299]
    assert IncrementalDetokenizer(vocabulary).push(ids) == "🌶né"
    assert (vocabulary.size, vocabulary.special_ids) == (301, frozenset({300}))


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\x0a\xff\xff\xff", b"not base64 at all", b"\x08\x01", b"\x0b", b"\x80"]
)
def test_no_such_file(tmp_path: Path, content: bytes) -> None:
    """What is none of these files is refused with an error that names it."""
    path = tmp_path / "broken"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match="broken"):
        Vocabulary.from_sentencepiece_file(path)
    with pytest.raises(ModelLoadError, match="broken"):
        Vocabulary.from_tekken_file(path)
    with pytest.raises(ModelLoadError, match="broken"):
        Vocabulary.from_tiktoken_file(path, {})
