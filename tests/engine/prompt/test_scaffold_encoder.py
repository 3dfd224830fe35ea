"""The second tokenizer: marked spellings are the control tokens, bare ones text, and ids are the first one's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from engine.prompt.control_tokens import ControlTokens
from engine.prompt.scaffold_encoder import ScaffoldEncoder
from engine.tokenizer import Tokenizer
from tests.engine.prompt.small_tokenizers import SPECIAL, WRITTEN, byte_level, owned, unigram

M = "\ue000"


def encoder_of(tokenizer: Tokenizer) -> tuple[ControlTokens, ScaffoldEncoder]:
    """Both, for a tokenizer whose templates write nothing."""
    control = ControlTokens(tokenizer, [])
    return control, ScaffoldEncoder(tokenizer, control, M)


BYTES = owned(byte_level())
BYTES_CONTROL, BYTES_ENCODER = encoder_of(BYTES)


@given(st.lists(st.sampled_from([*SPECIAL, *WRITTEN, "a", "<", "é", "\n", " "]), max_size=10).map("".join))
def test_wholly_marked_text_is_encoded_as_ever(text: str) -> None:
    """Where all control tokens are the scaffold's, the ids are those of the tokenizer itself."""
    assert BYTES_ENCODER.encode(BYTES_CONTROL.mark(text, M)) == BYTES.encode(text, add_special_tokens=False)


@given(st.lists(st.sampled_from([*SPECIAL, *WRITTEN, "a", "<", "é", "\n", " "]), max_size=10).map("".join))
def test_bare_text_has_no_control_token(text: str) -> None:
    """A text without marks comes back from its ids, none of which is a control token's."""
    token_ids = BYTES_ENCODER.encode(text)
    assert BYTES_CONTROL.agree("", "", token_ids)
    assert BYTES.decode(token_ids) == text


def test_pieces_of_the_model_that_spell_control_tokens_are_cut() -> None:
    """A model whose own vocabulary has `</s>` gives characters for it in text, and the token in the scaffold."""
    tokenizer = owned(unigram())
    _, encoder = encoder_of(tokenizer)
    token_ids = encoder.encode(f"{M}<s>{M}hi</s>")
    assert token_ids == [1, *(tokenizer.backend.token_to_id(piece) for piece in ("hi", "<", "/", "s", ">"))]


def test_unknown_characters_stay_unknown() -> None:
    """The unknown token is what unknown text is, and is not cut."""
    _, encoder = encoder_of(owned(unigram()))
    assert encoder.encode("hi\u4f60")[-1] == 0


@pytest.mark.parametrize("sides", [{"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}])
def test_tokens_that_strip_still_do(sides: dict[str, bool]) -> None:
    """A control token that takes the space at its side takes it in the scaffold."""
    backend = byte_level()
    backend.add_tokens([AddedToken("<mask>", special=True, normalized=False, **sides)])
    tokenizer = owned(backend)
    control, encoder = encoder_of(tokenizer)
    assert encoder.encode(control.mark("a <mask> b", M)) == tokenizer.encode("a <mask> b")


def test_the_tokenizer_is_left_as_it_was() -> None:
    """Making and using the second tokenizer changes neither ids nor vocabulary of the first."""
    tokenizer = owned(byte_level())
    before = tokenizer.backend.to_str()
    _, encoder = encoder_of(tokenizer)
    encoder.encode(f"{M}<s>{M}<s>")
    assert tokenizer.backend.to_str() == before
