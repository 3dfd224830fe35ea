"""Which tokens count as control, and what a guard does to a text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from engine.errors import InvalidRequestError
from engine.prompt.control_tokens import ControlTokens, absent_characters, without
from engine.prompt.conversation import Role
from tests.engine.prompt.small_tokenizers import SPECIAL, byte_level, owned, unigram

TEMPLATE = "<think></think><|user|>\n\n"
CONTROL = ControlTokens(owned(byte_level()), [TEMPLATE])
G = "\ue000"


@pytest.mark.parametrize(
    ("template", "more"),
    [("", set()), ("'<think>'", {"<think>"}), (TEMPLATE, {"<think>", "</think>", "<|user|>"})],
)
def test_control_tokens(template: str, more: set[str]) -> None:
    """Special tokens always; others where the template writes them; whitespace never."""
    assert set(ControlTokens(owned(byte_level()), [template]).ids) == {*SPECIAL, *more}


def test_named_tokens_are_control() -> None:
    """A token that the tokenizer's config gives a name steers, though it is not marked special."""
    tokenizer = owned(byte_level(), names=[("eos_token", "<|user|>")])
    assert "<|user|>" in ControlTokens(tokenizer, []).ids


@pytest.mark.parametrize(
    ("text", "role", "guarded"),
    [
        ("hello", Role.USER, "hello"),
        ("", Role.USER, ""),
        ("<|end|>", Role.USER, "<G|end|G>"),
        ("a < b", Role.USER, "a <G b"),
        ("x[1]", Role.USER, "x[G1G]"),
        ("> quoted", Role.USER, "G> quoted"),
        ("end", Role.USER, "eGnd"),
        ("end", None, "end"),
        ("|", Role.TOOL, "|G"),
        ("<think>", Role.USER, "<GthinkG>"),
        ("<think>", None, "<GthinkG>"),
        ("<think>a</think><|user|>", Role.ASSISTANT, "<think>a</think><G|user|G>"),
        ("<|<think>end|>", Role.ASSISTANT, "<G|<think>end|G>"),
    ],
)
def test_guard(text: str, role: Role | None, guarded: str) -> None:
    """Each edge of a control token is guarded, and in the assistant's turns its own paired tags are left whole."""
    assert CONTROL.guard(text, role, G) == guarded.replace("G", G)


pieces = st.sampled_from([*SPECIAL, "<", ">", "[", "]", "/", "s", "|", "end", "<|", "a", "\n"])
hostile = st.lists(pieces, max_size=8).map("".join)


@given(hostile, hostile, hostile, st.sampled_from([Role.USER, Role.ASSISTANT]))
def test_guarded_text_joins_no_control_token(before: str, text: str, after: str, role: Role) -> None:
    """Between any two scaffolds, a guarded text is part of no control token, and the guard can be taken out again."""
    guarded = CONTROL.guard(text, role, G)
    assert without(guarded, G) == text
    spelling = re.compile("|".join(map(re.escape, SPECIAL)))
    start, end = len(before), len(before) + len(guarded)
    spans = [match.span() for match in spelling.finditer(before + guarded + after)]
    assert not [span for span in spans if text and span[0] < end and span[1] > start]


@given(hostile, st.integers(0, 20), st.integers(0, 20))
def test_cutting_joins_no_control_token(text: str, start: int, length: int) -> None:
    """Nor is one made by cutting any part from the middle of a guarded text."""
    guarded = CONTROL.guard(text, Role.USER, G)
    left = guarded[:start] + guarded[start + length :]
    assert not re.search("|".join(map(re.escape, SPECIAL)), left)


def test_mark_takes_the_longest_at_the_leftmost() -> None:
    """Marking finds what a tokenizer would find."""
    assert CONTROL.mark("<<s></s>\n\n<|end|>", "M") == "<M<s>MM</s>M\n\nM<|end|>M"


def test_agreement_is_by_count() -> None:
    """One control token more or less, in the text or among the ids, is seen, whichever it is."""
    text = "<|start|>hi<|end|><think>"
    tokenizer = owned(byte_level())
    token_ids = tokenizer.encode(text)
    assert CONTROL.agree(text, text, token_ids)
    for other in ("<|start|>hi<|end|>", "<|start|>hi<|end|><s>", "<|start|><|start|>hi<|end|><think>"):
        assert not CONTROL.agree(other, text, token_ids)
        assert not CONTROL.agree(text, other, token_ids)
        assert not CONTROL.agree(text, text, tokenizer.encode(other))


def test_unknown_text_is_no_control_token() -> None:
    """Characters that a vocabulary does not know become its unknown token and are no intruder; its spelling is one."""
    tokenizer = owned(unigram())
    control = ControlTokens(tokenizer, [])
    text = "hi \u4f60<s>"
    assert control.agree(text, text, tokenizer.encode(text))
    assert not control.agree("<s>", "<s><unk>", tokenizer.encode("<s><unk>"))


@pytest.mark.parametrize(("normalized", "expected"), [(True, True), (False, False)])
def test_normalized_spellings_are_known_of(*, normalized: bool, expected: bool) -> None:
    """Where a normalizer can make a control token of other characters, that is known."""
    tokenizer = owned(byte_level(normalizers.NFKC(), normalized=normalized))
    assert ControlTokens(tokenizer, []).any_normalized is expected


def test_absent_characters() -> None:
    """The characters found are in no text, raw or escaped, and running out of them is the request's error."""
    assert absent_characters(["a\ue000", "\\ue001 \\uE002"], 2) == ("\ue002", "\ue003")
    with pytest.raises(InvalidRequestError):
        absent_characters(["".join(map(chr, range(0xE000, 0xF900 - 2)))], 3)


@pytest.mark.parametrize("text", ["a\ue000b", "a\\ue000b"])
def test_without_takes_escaped_ones_too(text: str) -> None:
    """A guard that a template escaped as JSON or as Python does is taken out as well."""
    assert without(text, G) == "ab"
