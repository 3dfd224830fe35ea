"""Every decoder of the library, and chains of them: streamed text equals one-shot decoding.

Never a decoder of our own making: the library's one-shot decoding is the reference throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from engine.detokenizer import IncrementalDetokenizer, Vocabulary
from tests.engine.detokenizer.samples import TEXTS
from tests.engine.detokenizer.strategies import quick

TOKENS = (
    *("a", "b", "", " ", "  ", "▁", "▁a", "a▁b", "▁▁", "##", "##a", "a##", "</w>", "a</w>", "</w>b", "a</w>b</w>"),
    *(
        "|",
        "a|b",
        "<pad>",
        "x<pad>y",
        ".",
        " .",
        " ,b",
        "'s",
        "n't",
        "do not",
        "Ġ",
        "Ġa",
        "é",
        "Ã©",
        "世",
        "🌶",
        "<unk>",
    ),
    *("<0xE4>", "<0xB8>", "<0x96>", "<0x41>", "<0x20>", "<0x+5>", "<0xzz>"),
)
SPECIALS = ("<s>", "▁<s>")
UNITS: tuple[tuple[str, ...], ...] = (*((token,) for token in TOKENS[:-7]), TOKENS[-7:-4], TOKENS[-4:-3], TOKENS[-3:-2])

space = decoders.Replace("▁", " ")
DECODERS: dict[str, Any] = {
    "none": None,
    "byte-level": decoders.ByteLevel(),
    "word-piece": decoders.WordPiece(),
    "word-piece-unclean": decoders.WordPiece("##", cleanup=False),
    "metaspace-always": decoders.Metaspace(),
    "metaspace-first": decoders.Metaspace(prepend_scheme="first"),
    "metaspace-never": decoders.Metaspace(prepend_scheme="never"),
    "bpe": decoders.BPEDecoder(),
    "bpe-other-suffix": decoders.BPEDecoder("a"),
    "ctc": decoders.CTC(),
    "ctc-unclean": decoders.CTC(cleanup=False),
    "replace": space,
    "replace-regex": decoders.Replace(Regex("[▁|]+"), "-"),
    "strip": decoders.Strip(" ", 1, 0),
    "byte-fallback": decoders.ByteFallback(),
    "fuse": decoders.Fuse(),
    "gemma": decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse()]),
    "llama": decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    "strip-three": decoders.Sequence([space, decoders.Fuse(), decoders.Strip(" ", 3, 0)]),
    "strip-end": decoders.Sequence([space, decoders.Fuse(), decoders.Strip("a", 0, 2)]),
    "tips": decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()]),
    "byte-level-strip": decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 2, 0)]),
    "fused-replace": decoders.Sequence([decoders.Fuse(), space, decoders.Metaspace(replacement="|")]),
    "fused-metaspace": decoders.Sequence([decoders.Fuse(), decoders.Metaspace(prepend_scheme="never")]),
    "nested": decoders.Sequence([decoders.Sequence([space, decoders.WordPiece()]), decoders.BPEDecoder()]),
    "ctc-word-piece": decoders.Sequence([decoders.CTC(), decoders.WordPiece()]),
}
UNSTREAMABLE = {
    "word-end-first": decoders.Sequence([decoders.BPEDecoder(), decoders.ByteFallback(), decoders.Fuse()]),
    "split-runs": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    "clean-whole-text": decoders.Sequence([decoders.Fuse(), decoders.WordPiece()]),
    "replace-words": decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "")]),
}


def word_level(decoder: Any) -> Tokenizer:
    """A tokenizer of exactly these tokens."""
    tokenizer = Tokenizer(models.WordLevel({token: rank for rank, token in enumerate(TOKENS)}, "<unk>"))
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.add_tokens([AddedToken("added ▁x", normalized=False)])
    if decoder is not None:
        tokenizer.decoder = decoder
    return tokenizer


@pytest.mark.parametrize("name", DECODERS)
@quick
@given(units=st.lists(st.sampled_from([*UNITS, ("<s>",), ("▁<s>",), ("added ▁x",), ("no token",)])), skip=st.booleans())
def test_streams_as_it_decodes(name: str, units: list[tuple[str, ...]], skip: bool) -> None:
    """Each decoder, fed ids one by one, gives what it gives for all of them; so also behind a prompt of any length."""
    tokenizer = word_level(DECODERS[name])
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.exact_bytes
    ids = [tokenizer.token_to_id(token) or -1 for unit in units for token in unit]
    whole = library_decode(tokenizer, ids, skip)
    for at in {0, len(ids) // 2, len(ids)}:
        before = IncrementalDetokenizer(vocabulary, skip_special_tokens=skip).push(ids[:at])
        spread = [each for token_id in ids[:at] for each in [*[-1] * 20, token_id]]
        for prompt in (ids[:at], spread):
            detokenizer = IncrementalDetokenizer(vocabulary, prompt, skip_special_tokens=skip)
            text = "".join(detokenizer.push_token(token_id) for token_id in ids[at:])
            assert before + text + detokenizer.finish() == whole


@pytest.mark.parametrize("name", UNSTREAMABLE)
def test_what_can_not_be_streamed(name: str, tmp_path: Path) -> None:
    """A decoder that needs more than a bounded look back takes the window, and says which decoder it is."""
    tokenizer = word_level(UNSTREAMABLE[name])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = [TOKENS.index(token) for token in ("a", "▁a", "<0x41>", "b")]
    for vocabulary in (
        Vocabulary.from_tokenizer(tokenizer),
        Vocabulary.from_tokenizer_file(tmp_path / "tokenizer.json"),
    ):
        assert not vocabulary.exact_bytes
        assert "sliding window: decoder" in vocabulary.description
        detokenizer = IncrementalDetokenizer(vocabulary)
        assert "".join(map(detokenizer.push_token, ids)) + detokenizer.finish() == tokenizer.decode(ids)


def library_decode(tokenizer: Tokenizer, ids: Sequence[int], skip: bool) -> str:
    """One-shot decoding, where the library can: it panics on stripping empty tokens."""
    try:
        return tokenizer.decode([token_id for token_id in ids if token_id >= 0], skip_special_tokens=skip)
    except BaseException as error:  # Rust's panics are no Exception
        assume(type(error).__name__ != "PanicException")
        raise


def train_word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def train_unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    specials = ["<unk>", "<s>"]
    options: dict[str, Any] = {"vocab_size": 400, "special_tokens": specials, "unk_token": specials[0]}
    trainer = trainers.UnigramTrainer(**options, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def train_word_end_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


@pytest.mark.parametrize("train", [train_word_piece, train_unigram, train_word_end_bpe])
def test_trained_vocabularies(train: Callable[[], Tokenizer], tmp_path: Path) -> None:
    """Vocabularies trained on real text, compiled from object and file alike: every cut of every text is exact."""
    tokenizer = train()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    compiled = [Vocabulary.from_tokenizer(tokenizer), Vocabulary.from_tokenizer_file(tmp_path / "tokenizer.json")]
    assert [vocabulary.exact_bytes for vocabulary in compiled] == [True, True]
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        for vocabulary in compiled:
            for at in range(len(ids) + 1):
                before = IncrementalDetokenizer(vocabulary).push(ids[:at])
                detokenizer = IncrementalDetokenizer(vocabulary, ids[:at])
                assert before + detokenizer.push(ids[at:]) + detokenizer.finish() == tokenizer.decode(ids)
