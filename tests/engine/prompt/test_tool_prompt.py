"""Tools for templates that know none: all of it reaches the model, in turns that the template takes, as text."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.output.parsers import DEFAULT_TOOL_FAMILY, ContentText, ToolCallArguments, ToolCallBegin, fold, tool_family
from engine.prompt.conversation import Conversation, Message, Role, ToolCall
from engine.prompt.renderer import PromptRenderer
from engine.prompt.tool_prompt import with_tools_as_text
from tests.engine.prompt.chat_templates import PLAIN
from tests.engine.prompt.small_tokenizers import SPECIAL, WRITTEN, byte_level, owned

TOOL = {"type": "function", "function": {"name": "get", "description": "An item.", "parameters": {"type": "object"}}}
USER = Message(Role.USER, "Good day?")
CALLING = Message(Role.ASSISTANT, "Well.", tool_calls=(ToolCall("1", "get", '{"id": 1}'),))
RESULT = Message(Role.TOOL, "one", tool_call_id="1")
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('in turns') }}"
    "{% endif %}[INST]{{ m.content }}[/INST]{% endfor %}"
)
"""As Mistral's and Gemma's first: neither a system prompt nor two turns of one side."""
IGNORING = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
THINKING = PLAIN + "<think></think>"
"""Its tags are the model's own, and stay so in what the assistant said."""
TOKENIZER = owned(byte_level())
IDS = {token.content: token.id for token in TOKENIZER.added_tokens}
hostile = st.lists(st.sampled_from([*SPECIAL, *WRITTEN, "<", ">", "a", '"', "é", "\\", "\n"]), max_size=5).map("".join)
roles = st.sampled_from([Role.USER, Role.ASSISTANT, Role.TOOL])


def renderer_of(template: str) -> PromptRenderer:
    return PromptRenderer(TOKENIZER, template, lambda: datetime(2026, 1, 1, tzinfo=UTC))


def rendered(conversation: Conversation, template: str) -> str:
    """As the server renders it for a template that knows no tools."""
    renderer = renderer_of(template)
    return renderer.render(with_tools_as_text(conversation, system_turns=renderer.takes_system_turns))


@pytest.mark.parametrize(
    ("template", "takes"),
    [(PLAIN, True), (ALTERNATING, False), (IGNORING, False), ("{{ raise_exception('') }}", False)],
)
def test_whether_a_template_takes_a_system_prompt(template: str, *, takes: bool) -> None:
    """It is seen by trying: one that raises takes none, and neither does one that leaves it out."""
    assert renderer_of(template).takes_system_turns == takes


@pytest.mark.parametrize("template", [PLAIN, ALTERNATING, IGNORING])
@pytest.mark.parametrize("messages", [[USER], [USER, CALLING, RESULT], [USER, CALLING, RESULT, RESULT, USER]])
def test_any_template_shows_tools_calls_and_results(template: str, messages: list[Message]) -> None:
    """Also one that refuses a system prompt, and one that wants user and assistant in turns."""
    text = rendered(Conversation(messages, tools=[TOOL]), template)
    described = text.partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert json.loads(described) == TOOL["function"]
    assert text.count("<tool_response>\none\n</tool_response>") == sum(m.role is Role.TOOL for m in messages)
    assert text.count("Good day?") == sum(m.role is Role.USER for m in messages)
    assert ('{"name": "get", "arguments": {"id": 1}}' in text) == (CALLING in messages)


def test_a_system_prompt_that_is_refused_stays_refused() -> None:
    """The client's own is not moved elsewhere: the template's word goes, with tools as without."""
    conversation = Conversation([Message(Role.SYSTEM, "Be brief."), USER], tools=[TOOL])
    told = with_tools_as_text(conversation, system_turns=False)
    assert [message.role for message in told.messages] == [Role.SYSTEM, Role.USER]


def test_a_conversation_that_the_assistant_begins_is_told_of_tools() -> None:
    """In a turn of its own, whoever may speak in it."""
    begun = Conversation([Message(Role.ASSISTANT, "Yes?"), USER], tools=[TOOL])
    for system_turns, role in ((True, Role.SYSTEM), (False, Role.USER)):
        first, *later = with_tools_as_text(begun, system_turns=system_turns).messages
        assert first.role is role
        assert later == begun.messages


@given(said=st.lists(roles, min_size=1, max_size=8), system_turns=st.booleans())
@settings(max_examples=200, deadline=None)
def test_turns_that_alternate_do_so_afterwards(*, said: list[Role], system_turns: bool) -> None:
    """Rewriting makes no turn follow another of the same side, other than where the client's did; none is left out."""
    messages = [Message(role, f"text {index}", tool_calls=()) for index, role in enumerate(said)]
    told = with_tools_as_text(Conversation(messages, tools=[TOOL]), system_turns=system_turns).messages
    doubled = [(a.role, b.role) for a, b in pairwise(told) if a.role == b.role]
    assert len(doubled) <= sum(a is b for a, b in pairwise(said)) + sum(
        (a, b) == (Role.USER, Role.TOOL) for a, b in pairwise(said)
    )
    everything = "".join(message.text for message in told)
    assert [everything.count(f"text {index}") for index in range(len(said))] == [1] * len(said)


@given(texts=st.lists(hostile, min_size=6, max_size=6))
@settings(max_examples=200, deadline=None)
def test_nothing_that_a_client_sends_of_tools_steers_the_model(texts: list[str]) -> None:
    """No name, description, schema, argument or result is a control token, nor where the assistant's own tags are."""
    *told, said = texts

    def prompt(*parts: str) -> Conversation:
        name, described, key, argument, result = parts
        call = ToolCall("1", f"f{name}", json.dumps({key: argument}, ensure_ascii=False))
        function = {"name": f"f{name}", "description": described, "parameters": {"properties": {key: {}}}}
        turns = [Message(Role.USER, said), Message(Role.ASSISTANT, "", tool_calls=(call,)), Message(Role.TOOL, result)]
        return with_tools_as_text(Conversation(turns, tools=[{"type": "function", "function": function}]))

    for template, tags in ((PLAIN, SPECIAL), (THINKING, (*SPECIAL, "<think>", "</think>"))):
        renderer, control = renderer_of(template), {IDS[tag] for tag in tags}
        plain, ids = (renderer.encode(prompt(*parts)) for parts in ([""] * 5, told))
        assert [i for i in ids if i in control] == [i for i in plain if i in control]
        assert renderer.shown_text(ids) == renderer.render(prompt(*told))


def test_tags_of_the_models_own_stay_in_what_the_assistant_said() -> None:
    """Beside a call whose arguments spell the same: those alone are text."""
    call = ToolCall("1", "get", '{"id": "</think>"}')
    turn = Message(Role.ASSISTANT, "<think>so</think>", tool_calls=(call,))
    ids = renderer_of(THINKING).encode(with_tools_as_text(Conversation([USER, turn])))
    assert ids.count(IDS["</think>"]) == 2, "the assistant's, and the template's"


@given(
    calls=st.lists(
        st.tuples(st.sampled_from(["get", "é.x"]), st.dictionaries(hostile, hostile, max_size=2)),
        min_size=1,
        max_size=3,
    ),
    text=st.sampled_from(["", "Well."]),
)
@settings(max_examples=100, deadline=None)
def test_past_calls_are_written_as_the_model_writes_them(calls: list[tuple[str, dict[str, str]]], text: str) -> None:
    """The parser of the format that the model is shown reads them back."""
    made = tuple(ToolCall("1", name, json.dumps(arguments)) for name, arguments in calls)
    (told,) = with_tools_as_text(Conversation([Message(Role.ASSISTANT, text, tool_calls=made)])).messages
    parser = tool_family(DEFAULT_TOOL_FAMILY).parser()
    parts = fold([*parser.push(told.text + told.calls_text), *parser.finish()])
    names = [part.name for part in parts if isinstance(part, ToolCallBegin)]
    arguments = [json.loads(part.text) for part in parts if isinstance(part, ToolCallArguments)]
    assert list(zip(names, arguments, strict=True)) == calls
    assert "".join(part.text for part in parts if isinstance(part, ContentText)).rstrip() == text
