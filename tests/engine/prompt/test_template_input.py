"""What a template is handed: the shape of tool calls that it understands, roles it knows, and every text rewritten."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from engine.prompt.conversation import Conversation, Message, Role, ToolCall
from engine.prompt.template import ChatTemplate
from engine.prompt.template_input import MessageShape, probe, template_variables, texts_in
from tests.engine.prompt import chat_templates

CALL = ToolCall("c1", "f", '{"city": "Oslo"}')


def shape_of(source: str) -> MessageShape:
    """What the probe finds out about a template."""
    return probe(ChatTemplate(source, datetime.now))


def first_call(call: ToolCall, shape: MessageShape) -> Any:
    """The arguments of a call as a template of that shape is handed them."""
    conversation = Conversation([Message(Role.ASSISTANT, "", tool_calls=(call,))])
    variables = template_variables(conversation, shape, lambda text, _: text)
    return variables["messages"][0]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        (chat_templates.TOOLS, MessageShape("", arguments_as_text=False)),
        (chat_templates.XML_ARGUMENTS, MessageShape("", arguments_as_text=False)),
        (chat_templates.TEXT_ARGUMENTS, MessageShape(None, arguments_as_text=True)),
        (chat_templates.PLAIN, MessageShape("", arguments_as_text=False)),
        ("{{ raise_exception('no') }}", MessageShape()),
        ("{{ messages[1].tool_calls[0].function.name }}{{ messages[1].content }}", MessageShape("")),
        ("{{ messages[1].tool_calls[0].function.name }}{{ messages[1].content + '' }}", MessageShape("")),
        ("{% for c in messages[1].tool_calls %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}",
         MessageShape("", arguments_as_text=True)),
        ("{{ 'developer' }}", MessageShape(knows_developer=True)),
    ],
)  # fmt: skip
def test_probe(source: str, shape: MessageShape) -> None:
    """The shape is one in which the template shows a call, or the usual one where none is shown, whatever it raises."""
    assert shape_of(source) == shape


@pytest.mark.parametrize(
    ("arguments", "as_object", "as_text"),
    [
        ('{"city": "Oslo"}', {"city": "Oslo"}, '{"city": "Oslo"}'),
        ("", {}, "{}"),
        ("null", {}, "{}"),
        ("{}", {}, "{}"),
        ('{"cut": "of', '{"cut": "of', '{"cut": "of'),
        ("[1]", "[1]", "[1]"),
    ],
)
def test_arguments_in_both_shapes(arguments: str, as_object: Any, as_text: str) -> None:
    """Objects for templates that want objects, JSON text for those that want text, and what is neither as it is."""
    call = ToolCall("c1", "f", arguments)
    assert first_call(call, MessageShape()) == as_object
    assert first_call(call, MessageShape(arguments_as_text=True)) == as_text


@pytest.mark.parametrize(("knows", "role"), [(True, "developer"), (False, "system")])
def test_developer_is_system_where_unknown(*, knows: bool, role: str) -> None:
    """A developer's message is never dropped by a template that has not heard of the role."""
    conversation = Conversation([Message(Role.DEVELOPER, "be brief")])
    variables = template_variables(conversation, MessageShape(knows_developer=knows), lambda text, _: text)
    assert variables["messages"] == [{"role": role, "content": "be brief"}]


def test_absent_fields_stay_absent() -> None:
    """Templates ask `is defined`: a field that the client did not send is not there at all."""
    conversation = Conversation([Message(Role.USER, "hi")])
    variables = template_variables(conversation, MessageShape(), lambda text, _: text)
    assert variables == {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
    }


def test_every_text_of_the_client_is_rewritten() -> None:
    """No text of the client's reaches a template past the rewrite; roles and names of fields are not its text."""
    call = ToolCall("5", "6", '{"7": ["8", {"9": "10"}]}')
    messages = [
        Message(Role.USER, "1", name="2"),
        Message(Role.ASSISTANT, "3", reasoning_content="4", tool_calls=(call,)),
        Message(Role.ASSISTANT, "", tool_calls=(ToolCall("11", "12", "13"),)),
        Message(Role.TOOL, "14", tool_call_id="15"),
    ]
    tools, kwargs = [{"16": {"17": ["18", 1, None]}}], {"key": {"19": "20"}}
    conversation = Conversation(messages, tools=tools, chat_template_kwargs=kwargs)
    seen: list[tuple[str, Role | None]] = []

    def rewrite(text: str, role: Role | None) -> str:
        seen.append((text, role))
        return f"<{text}>"

    variables = template_variables(conversation, MessageShape(), rewrite)
    digits = {text.strip("<>") for text in texts_in(variables) if text.strip("<>").isdigit()}
    assert digits == {str(number) for number in range(1, 21)}
    assert all(text.startswith("<") for text in texts_in(variables) if text.strip("<>").isdigit())
    roles = dict(seen)
    expected = {"1": "user", "3": "assistant", "10": "tool", "14": "tool", "18": None, "20": None}
    assert {text: roles[text] for text in expected} == expected


EITHER = (
    "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}"
    "{{ raise_exception('not both') }}{% endif %}"
    "{{ m.content }}/{{ m.thinking }}/{{ m.tool_calls[0].function.name if m.tool_calls }}{% endfor %}"
)
"""As gpt-oss's: a turn with calls has a thought or a text."""


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("{{ messages[0].reasoning_content }}", ("reasoning_content",)),
        ("{{ messages[0]['reasoning'] }}", ("reasoning",)),
        ("{{ messages[0].get('thinking') }}", ("thinking",)),
        ("{{ messages[0].reasoning_content or messages[0].reasoning }}", ("reasoning_content", "reasoning")),
        ("{{ thinking }} detailed thinking on", ("reasoning_content",)),
        (EITHER, ("thinking",)),
    ],
)
def test_past_reasoning_goes_by_the_names_that_the_template_reads(source: str, names: tuple[str, ...]) -> None:
    """Not by those of its variables or its text; by the usual one where none is read, which changes nothing."""
    shape = shape_of(source)
    assert shape.reasoning_names == names
    conversation = Conversation([Message(Role.ASSISTANT, "so", reasoning_content="why")])
    (turn,) = template_variables(conversation, shape, lambda text, _: text)["messages"]
    assert {name: turn[name] for name in names} == dict.fromkeys(names, "why")
    assert len(turn) == 2 + len(names)


@pytest.mark.parametrize("source", [EITHER, chat_templates.TOOLS, chat_templates.PLAIN])
@pytest.mark.parametrize("text", ["", "so"])
@pytest.mark.parametrize("reasoning", [None, "why"])
@pytest.mark.parametrize("calls", [(), (CALL,)])
def test_every_turn_of_the_assistants_is_rendered(
    source: str, text: str, reasoning: str | None, calls: tuple[ToolCall, ...]
) -> None:
    """What a client got and sends back is never refused: where a template wants one text, it is given both in one."""
    template = ChatTemplate(source, datetime.now)
    conversation = Conversation([Message(Role.ASSISTANT, text, tool_calls=calls, reasoning_content=reasoning)])
    rendered = template.render(template_variables(conversation, probe(template), lambda text, _: text))
    assert text in rendered
    assert reasoning is None or source == chat_templates.PLAIN or reasoning in rendered
