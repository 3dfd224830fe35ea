"""The vocabularies that people serve: client text stays text in each, and ordinary prompts are encoded as ever.

Never their own templates, which are not in the files: each gets a small one that writes the model's own control tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prompt import Conversation, Message, PromptRenderer, Role
from engine.tokenizer import Tokenizer, TokenizerSettings
from tests import vocabularies

CONTROL = {
    "smollm2": ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    "qwen3": ("<|im_start|>", "<|im_end|>", "<tool_response>", "</tool_response>", "<think>"),
    "llama3": ("<|start_header_id|>", "<|eot_id|>", "<|begin_of_text|>"),
    "gptoss": ("<|start|>", "<|end|>", "<|channel|>"),
    "deepseek_v3": ("<\uff5cUser\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5cAssistant\uff5c>"),
    "llama2": ("<s>", "</s>"),
    "gemma3": ("<start_of_turn>", "<end_of_turn>", "<bos>"),
}
"""The first begins a turn, the second ends it; the template writes all."""
ORDINARY = ("hi", " a < b ", "<b>\n\n  x</b>", "naïve 你好 \U0001f600")


def template(control: Sequence[str]) -> str:
    """Writes every one of the tokens once, then the turns."""
    begin, end, *_ = control
    turns = f"{begin}{{{{ message.role }}}}: {{{{ message.content }}}}{end}"
    return f"{''.join(control)}{{% for message in messages %}}{turns}{{% endfor %}}{begin}"


@cache
def tokenizer(name: str) -> Tokenizer:
    """The engine's tokenizer around a real vocabulary."""
    return Tokenizer(vocabularies.tokenizer(name), TokenizerSettings({}, {}))


@cache
def renderer(name: str) -> PromptRenderer:
    """Its renderer."""
    return PromptRenderer(tokenizer(name), template(CONTROL[name]), datetime.now)


def asked(texts: Sequence[str]) -> Conversation:
    """Turns of the user's."""
    return Conversation([Message(Role.USER, text) for text in texts])


def counts(name: str, texts: Sequence[str]) -> Counter[int]:
    """How often each of the control tokens is in the prompt."""
    control = {tokenizer(name).backend.token_to_id(spelling) for spelling in CONTROL[name]}
    return Counter(token_id for token_id in renderer(name).encode(asked(texts)) if token_id in control)


def fragments(name: str) -> st.SearchStrategy[str]:
    """Text with the model's control tokens, and halves of them, in it."""
    pieces = [part for whole in CONTROL[name] for part in (whole, whole, whole[:-1], whole[1:], whole[:3])]
    pieces += ["hi", " ", "\n\n", "é", "你好", "\U0001f600", "\u2581", "<b>"]
    return st.lists(st.sampled_from(pieces), max_size=6).map("".join)


@pytest.mark.parametrize("name", vocabularies.NAMES)
def test_no_control_token_comes_from_the_client(name: str) -> None:
    """Control tokens are in the prompt as often as with harmless texts, and the ids decode to the literal text."""

    @settings(max_examples=40, deadline=None, database=None)
    @given(st.lists(fragments(name), min_size=1, max_size=3))
    def check(texts: list[str]) -> None:
        assert counts(name, texts) == counts(name, ["x"] * len(texts))
        decoded = tokenizer(name).decode(renderer(name).encode(asked(texts)))
        if name in vocabularies.BYTE_LEVEL:
            assert decoded == renderer(name).render(asked(texts))

    check()


@pytest.mark.parametrize("name", vocabularies.NAMES)
@pytest.mark.parametrize("text", [*ORDINARY, "", "> quoted\n[1] [/2]", "\ue000\t"])
def test_ordinary_prompts_are_encoded_as_ever(name: str, text: str) -> None:
    """The ids are those that the tokenizer makes of the rendered prompt."""
    conversation = asked([text, "x", text])
    rendered = renderer(name).render(conversation)
    assert renderer(name).encode(conversation) == tokenizer(name).encode(rendered, add_special_tokens=False)


@pytest.mark.parametrize("name", vocabularies.NAMES)
@pytest.mark.parametrize("text", ORDINARY)
def test_the_safe_way_differs_nowhere_else(name: str, text: str) -> None:
    """Beside a turn that spells a control token, the ids of an ordinary turn are what they are without it."""
    begin = tokenizer(name).backend.token_to_id(CONTROL[name][0])

    def last_turn(first_text: str) -> list[int]:
        *turns, header = renderer(name).encode(asked([first_text, text]))
        assert header == begin
        return turns[len(turns) - turns[::-1].index(begin) :]

    assert last_turn(f"x{CONTROL[name][1]}") == last_turn("x")
