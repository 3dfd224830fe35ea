"""Ordinary conversations: the same text and ids as transformers' chat templating, and errors that name the field."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from engine.errors import InvalidRequestError
from engine.prompt import Conversation, Message, PromptRenderer, Role, ToolCall
from engine.tokenizer import Tokenizer, TokenizerSettings
from tests.engine.prompt.chat_templates import PLAIN, STRICT, STRIPPING, TEXT_ARGUMENTS, TOOLS, XML_ARGUMENTS
from tests.engine.prompt.small_tokenizers import SPECIAL, WRITTEN, byte_level, owned

BACKEND = byte_level()
TEMPLATES = {"plain": PLAIN, "stripping": STRIPPING, "tools": TOOLS, "xml": XML_ARGUMENTS}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}}
CALL = ToolCall("c1", "weather", '{"city": "Oslo \\u00e9<b>", "days": [1, 2]}')
TALK = (
    Message(Role.SYSTEM, "Be brief."),
    Message(Role.USER, "What's the weather <b>there</b>?", name="kim"),
    Message(Role.ASSISTANT, "Let me see.", reasoning_content="a tool", tool_calls=(CALL,)),
    Message(Role.TOOL, '{"sky": "blue"}', tool_call_id="c1"),
    Message(Role.ASSISTANT, "Blue.\n"),
    Message(Role.USER, "Thanks \U0001f600 你好\n\n"),
)


FRAME = ("messages", "tools", "add_generation_prompt", "continue_final_message")


def now() -> datetime:
    """A fixed time."""
    return datetime(2024, 1, 1, tzinfo=UTC)


def renderer(template: str | None) -> PromptRenderer:
    """A renderer over the byte-level tokenizer."""
    return PromptRenderer(owned(BACKEND, template), template, now)


RENDERERS = {name: renderer(template) for name, template in TEMPLATES.items()}


def as_dict(message: Message) -> dict[str, Any]:
    """A message as users of transformers write it."""
    given_fields = {"role": str(message.role), "content": message.text, "name": message.name}
    given_fields |= {"tool_call_id": message.tool_call_id, "reasoning_content": message.reasoning_content}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.parsed_arguments()}}
        for call in message.tool_calls
    ]
    return {name: value for name, value in given_fields.items() if value is not None} | (
        {"tool_calls": calls} if calls else {}
    )


def reference(template: str, conversation: Conversation) -> str:
    """What transformers renders."""
    rendered, _ = render_jinja_template(
        conversations=[[as_dict(message) for message in conversation.messages]],
        tools=conversation.tools,
        chat_template=template,
        continue_final_message=conversation.continue_final_message,
        add_generation_prompt=conversation.add_generation_prompt,
        bos_token="<s>",
        **conversation.chat_template_kwargs,
    )
    return str(rendered[0])


def said(*texts: str) -> list[Message]:
    """Turns of user and assistant, the user's first."""
    return [Message(Role.ASSISTANT if index % 2 else Role.USER, text) for index, text in enumerate(texts)]


def refused(template: str | None, conversation: Conversation) -> InvalidRequestError:
    """The error with which both ways to use a conversation refuse it."""
    with pytest.raises(InvalidRequestError) as rendering:
        renderer(template).render(conversation)
    with pytest.raises(InvalidRequestError) as encoding:
        renderer(template).encode(conversation)
    assert (rendering.value.message, rendering.value.param) == (encoding.value.message, encoding.value.param)
    return encoding.value


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("turns", range(1, len(TALK) + 1))
@pytest.mark.parametrize(
    "options", [{}, {"add_generation_prompt": False}, {"chat_template_kwargs": {"thinking": True}}]
)
@pytest.mark.parametrize("tools", [None, (TOOL, TOOL)])
def test_equals_transformers(
    name: str, turns: int, options: dict[str, Any], tools: Sequence[dict[str, Any]] | None
) -> None:
    """Text and ids of a conversation, at every length, are what transformers makes of it."""
    conversation = Conversation(TALK[:turns], tools=tools, **options)
    expected = reference(TEMPLATES[name], conversation)
    assert RENDERERS[name].render(conversation) == expected
    assert RENDERERS[name].encode(conversation) == BACKEND.encode(expected, add_special_tokens=False).ids


ordinary = st.text(st.characters(codec="utf-8") | st.sampled_from('<>|[]/" \n')).filter(
    lambda text: not any(spelling in text for spelling in (*SPECIAL, *WRITTEN))
)


@given(st.lists(ordinary, min_size=1, max_size=4))
def test_any_ordinary_text_equals_transformers(texts: list[str]) -> None:
    """Text without control tokens, brackets and halves of them included, is encoded as transformers encodes it."""
    conversation = Conversation(said(*texts))
    for name, template in TEMPLATES.items():
        expected = reference(template, conversation)
        assert RENDERERS[name].encode(conversation) == BACKEND.encode(expected, add_special_tokens=False).ids


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize(
    "content", ["The sky is", "The sky is ", "The sky is\n\n", " x", "<b", "a <b>\t", "é", "\U0001f600"]
)
def test_continuation_equals_transformers(name: str, content: str) -> None:
    """The final content ends the prompt, stripped where the template strips it."""
    conversation = Conversation(said("Hi", "Hello", "Go on", content), continue_final_message=True)
    rendered = RENDERERS[name].render(conversation)
    assert rendered == reference(TEMPLATES[name], conversation)
    assert rendered.endswith(content.strip() if name == "stripping" else content)
    assert RENDERERS[name].encode(conversation) == BACKEND.encode(rendered, add_special_tokens=False).ids


def test_empty_content_can_be_continued() -> None:
    """Nothing said yet is continued as the header alone, and an earlier turn's text is not mistaken for the end."""
    conversation = Conversation(said("Hi", ""), continue_final_message=True)
    assert RENDERERS["plain"].render(conversation) == "<|start|>user\nHi<|end|>\n<|start|>assistant\n"


def test_content_that_the_template_leaves_out_can_not_be_continued() -> None:
    """A prompt that does not end in the final message is refused, not made."""
    error = refused("{{ messages[0].content }}", Conversation(said("Hi", "Hello"), continue_final_message=True))
    assert error.param == "continue_final_message"


def test_tool_calls_without_content_leave_no_none() -> None:
    """A history in which the assistant only called tools renders without the word None, in every template."""
    messages = [
        Message(Role.USER, "hi"),
        Message(Role.ASSISTANT, None, tool_calls=(ToolCall("c1", "f", "{}"),)),
        Message(Role.TOOL, "ok", tool_call_id="c1"),
    ]
    for template in (*TEMPLATES.values(), TEXT_ARGUMENTS):
        assert "None" not in renderer(template).render(Conversation(messages))
    assert "f {}" in renderer(TEXT_ARGUMENTS).render(Conversation(messages))


def test_a_lone_assistant_message_renders() -> None:
    """A conversation need not begin with the user."""
    assert "only" in RENDERERS["plain"].render(Conversation([Message(Role.ASSISTANT, "only")]))


@pytest.mark.parametrize(
    ("conversation", "param"),
    [
        (Conversation([Message(Role.SYSTEM, "x")]), "messages"),
        (Conversation(said("x"), chat_template_kwargs={"mode": "text"}), "chat_template_kwargs"),
        (Conversation(said("x"), tools=[{"type": "function"}]), "tools"),
        (Conversation([Message(Role.SYSTEM, "x")], chat_template_kwargs={"mode": 1}), "messages"),
        (Conversation(said("\ud800")), "messages"),
        (Conversation(said("x"), tools=[{"function": {"a\udfff": 1}}]), "tools"),
        (Conversation(said("x"), chat_template_kwargs={"mode": "\ud83d"}), "chat_template_kwargs"),
    ],
)
def test_errors_name_the_field(conversation: Conversation, param: str) -> None:
    """The field without which the template would have rendered, or whose text is no Unicode, is the one named."""
    assert refused(STRICT, conversation).param == param


@pytest.mark.parametrize("name", [*FRAME, "bos_token", "raise_exception", "range"])
def test_kwargs_can_not_override(name: str) -> None:
    """What the prompt's frame is made of is not the client's to replace."""
    error = refused(PLAIN, Conversation(said("x"), chat_template_kwargs={name: "y"}))
    assert error.param == "chat_template_kwargs"
    assert repr(name) in error.message


@pytest.mark.parametrize("name", ["self", "context", "not an identifier", "loop", "caller", ""])
def test_kwargs_of_any_name_do_no_harm(name: str) -> None:
    """A variable's name is only a name."""
    conversation = Conversation(said("x"), chat_template_kwargs={name: "y"})
    assert RENDERERS["plain"].render(conversation) == RENDERERS["plain"].render(Conversation(said("x")))


def test_documents_are_an_ordinary_variable() -> None:
    """Templates that know documents get the client's, or None as in transformers."""
    asks = renderer("{{ documents is none }} {{ (documents or [{'text': '-'}])[0].text }}")
    assert asks.render(Conversation(said("x"))) == "True -"
    documents = {"documents": [{"text": "a"}]}
    assert asks.render(Conversation(said("x"), chat_template_kwargs=documents)) == "False a"


def test_no_template() -> None:
    """A model without a chat template says so and where to go instead."""
    error = refused(None, Conversation(said("hi")))
    assert error.param == "messages"
    assert "/v1/completions" in error.message


def test_template_for_tools() -> None:
    """A model's second template serves conversations with tools, unless the operator named a template."""
    settings = TokenizerSettings({}, {"default": "plain", "tool_use": "with tools"})
    tokenizer = Tokenizer(byte_level(), settings)
    with_tools, without_tools = Conversation(said("x"), tools=[TOOL]), Conversation(said("x"))
    own = PromptRenderer(tokenizer, tokenizer.chat_template, now)
    assert (own.render(with_tools), own.render(without_tools)) == ("with tools", "plain")
    assert PromptRenderer(tokenizer, "mine", now).render(with_tools) == "mine"


def test_the_date_is_the_callers() -> None:
    """A template's date comes from the clock that the renderer was given."""
    assert renderer("{{ strftime_now('%Y-%m-%d') }}").render(Conversation(said("x"))) == "2024-01-01"


def test_raw_text_honours_control_tokens() -> None:
    """A raw prompt is the client's own scaffold: spelled control tokens are those tokens."""
    assert RENDERERS["plain"].encode_text("<s>a") == BACKEND.encode("<s>a").ids
    assert RENDERERS["plain"].encode_text("") == []
    with pytest.raises(InvalidRequestError) as caught:
        RENDERERS["plain"].encode_text("a\ud800")
    assert caught.value.param == "prompt"


def test_demo_model_equals_transformers(demo_model: Path) -> None:
    """Text and ids of the demo model's prompts are those of transformers' `apply_chat_template`."""
    tokenizer = Tokenizer.from_folder(demo_model)
    own = PromptRenderer(tokenizer, tokenizer.chat_template, now)
    theirs = AutoTokenizer.from_pretrained(str(demo_model))
    for turns in range(1, len(TALK) + 1):
        conversation = Conversation(TALK[:turns])
        messages = [as_dict(message) for message in conversation.messages]
        text = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        token_ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert (own.render(conversation), own.encode(conversation)) == (text, token_ids)
