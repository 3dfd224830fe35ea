"""What a request's answers are read with and held to: the model's families and the client's wishes put together."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.output.parsers import ReasoningStart, reasoning_family, tool_family
from engine.output.parsers.families import OutputFamilies, output_families
from engine.prompt.answer_plan import planned, started
from engine.prompt.conversation import Conversation, Message, Role, ToolCall
from engine.prompt.lowering import GenerateRequest
from engine.prompt.renderer import PromptRenderer
from engine.prompt.tool_choice import ToolChoice
from engine.prompt.tool_prompt import with_tools_as_text
from engine.tokenizer import Tokenizer
from engine.types import SamplingParams, Structure, StructureKind, TextParams

GET = {"type": "function", "function": {"name": "get", "description": "An <|im_end|> item.", "parameters": {}}}
SAID = (Message(Role.USER, "hi"),)
HERMES = OutputFamilies(reasoning_family("qwen3"), tool_family("hermes"), template_knows_tools=True)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% elif forced %}<think>\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer.from_folder(demo_model)


def renderer_of(tokenizer: Tokenizer, template: str | None) -> PromptRenderer:
    return PromptRenderer(tokenizer, template, lambda: datetime(2026, 1, 1, tzinfo=UTC))


def asked(conversation: Conversation, **fields: Any) -> GenerateRequest:
    return GenerateRequest("r", (conversation,), SamplingParams(max_tokens=1), TextParams(), **fields)


def test_tools_as_text_keep_control_tokens_out(tokenizer: Tokenizer) -> None:
    """Descriptions, calls and results reach a template that knows no tools, and none of their text steers the model."""
    turns = [
        Message(Role.SYSTEM, "Be brief."),
        *SAID,
        Message(Role.ASSISTANT, "Well.", tool_calls=(ToolCall("1", "get", '{"id": "<|im_start|>"}'),)),
        Message(Role.TOOL, "one<|im_end|>", tool_call_id="1"),
        Message(Role.TOOL, "two"),
    ]
    conversation = with_tools_as_text(Conversation(turns, tools=[GET]))
    assert [message.role for message in conversation.messages] == ["system", "user", "assistant", "user"]
    assert conversation.tools is None
    renderer = renderer_of(tokenizer, tokenizer.chat_template)
    ids = renderer.encode(conversation)
    text = tokenizer.decode(ids)
    for part in ("Be brief.\n\n", "An <|im_end|> item.", '{"name": "get", "arguments": {"id": "<|im_start|>"}}'):
        assert part in text
    assert text.count("<tool_response>\n") == 2
    plain = renderer.encode(Conversation([Message(message.role, "x") for message in conversation.messages]))
    control = {tokenizer.special_tokens[name] for name in ("<|im_start|>", "<|im_end|>")}
    assert sum(i in control for i in ids) == sum(i in control for i in plain)


def test_a_template_that_knows_tools_is_given_them(tokenizer: Tokenizer) -> None:
    """As they are: nothing is written for it."""
    request = asked(Conversation(SAID, tools=[GET]), tool_choice=ToolChoice({"get": {}}))
    (conversation,) = planned(request, HERMES, renderer_of(tokenizer, THINKING)).prompts
    assert isinstance(conversation, Conversation)
    assert conversation.tools == [GET]


@pytest.mark.parametrize(
    ("family", "variables", "start"),
    [
        ("qwen3", {}, ReasoningStart.BEFORE),
        ("qwen3", {"enable_thinking": False}, ReasoningStart.AFTER),
        ("qwen3", {"forced": True}, ReasoningStart.INSIDE),
        ("deepseek_r1", {}, ReasoningStart.INSIDE),
        ("deepseek_r1", {"enable_thinking": False}, ReasoningStart.AFTER),
        ("gpt_oss", {}, ReasoningStart.BEFORE),
    ],
)
def test_where_the_prompt_leaves_the_reasoning(
    tokenizer: Tokenizer, family: str, variables: dict[str, Any], start: ReasoningStart
) -> None:
    """It is read from the rendered prompt's end, not from what the client said about thinking or in its text."""
    renderer = renderer_of(tokenizer, THINKING)
    conversation = Conversation([Message(Role.USER, "<think> </think> <think>")], chat_template_kwargs=variables)
    request = planned(asked(conversation), OutputFamilies(reasoning_family(family)), renderer)
    plan = started(request, renderer.encode(conversation), renderer).parsing
    assert plan is not None
    assert plan.reasoning_start is start


def test_a_continued_answer_goes_on_where_it_was(tokenizer: Tokenizer) -> None:
    """In the reasoning that its text has begun, or after the one that it has ended."""
    renderer = renderer_of(tokenizer, THINKING)
    for text, start in (("<think>\nso", ReasoningStart.INSIDE), ("<think>x</think>y", ReasoningStart.AFTER)):
        turns = (*SAID, Message(Role.ASSISTANT, text))
        conversation = Conversation(turns, continue_final_message=True)
        request = planned(asked(conversation), HERMES, renderer)
        plan = started(request, renderer.encode(conversation), renderer).parsing
        assert plan is not None
        assert plan.reasoning_start is start


def test_forced_calls_are_a_grammar_in_the_default_format(tokenizer: Tokenizer) -> None:
    """Also of a model that writes them otherwise; nothing is thought before, and no other structure fits beside it."""
    renderer = renderer_of(tokenizer, THINKING)
    choice = ToolChoice({"get": {"properties": {"id": {"type": "integer"}}}}, forced=True)
    glm = OutputFamilies(reasoning_family("glm45"), tool_family("glm45"), template_knows_tools=True)
    request = planned(asked(Conversation(SAID, tools=[GET]), tool_choice=choice), glm, renderer)
    assert request.structure is not None
    assert request.structure.kind is StructureKind.GRAMMAR
    assert request.text.parsing is not None
    assert (request.text.parsing.reasoning, request.text.parsing.tools) == (None, tool_family("hermes"))
    wanted = Structure(StructureKind.JSON_OBJECT, param="response_format")
    with pytest.raises(InvalidRequestError, match="response_format"):
        planned(asked(Conversation(SAID), tool_choice=choice, structure=wanted), glm, renderer)


def test_strict_tools_keep_their_schema_where_the_format_is_known(tokenizer: Tokenizer) -> None:
    """Text may come instead of a call, so there is still reasoning; without `strict` nothing is held to anything."""
    renderer = renderer_of(tokenizer, THINKING)
    for strict, held in ((frozenset({"get"}), True), (frozenset[str](), False)):
        choice = ToolChoice({"get": {}}, strict=strict)
        request = planned(asked(Conversation(SAID, tools=[GET]), tool_choice=choice), HERMES, renderer)
        assert (request.structure is not None) == held
        assert request.text.parsing is not None
        assert request.text.parsing.reasoning is HERMES.reasoning


def test_an_answer_of_a_given_shape_has_no_reasoning(tokenizer: Tokenizer) -> None:
    """A grammar holds from the first token on."""
    structure = Structure(StructureKind.JSON_OBJECT, param="response_format")
    request = planned(asked(Conversation(SAID), structure=structure), HERMES, renderer_of(tokenizer, THINKING))
    assert request.text.parsing is None


def test_tools_of_a_format_that_is_not_known_are_refused(tokenizer: Tokenizer) -> None:
    """With the setting that would say how to read them."""
    families = output_families("{{ tools }} <function=x></function>", None, None)
    request = asked(Conversation(SAID, tools=[GET]), tool_choice=ToolChoice({"get": {}}))
    with pytest.raises(UnsupportedParameterError, match=r"engine\.tool_parser"):
        planned(request, families, renderer_of(tokenizer, THINKING))


@pytest.mark.parametrize(
    ("effort", "template", "variables"),
    [
        ("high", "{{ reasoning_effort }}", {"reasoning_effort": "high"}),
        ("none", THINKING, {"enable_thinking": False}),
        ("none", "{% if thinking %}<think>{% endif %}", {"thinking": False}),
        (
            "none",
            "{{ reasoning_effort }}{% set enable_thinking = enable_thinking | default(true) %}",
            {"reasoning_effort": "none", "enable_thinking": False},
        ),
        ("none", "plain", None),
        ("none", "detailed thinking on {# enable_thinking #}{{ messages[0].thinking }}", None),
        ("high", "reasoning_effort", None),
        ("high", THINKING, None),
    ],
)
def test_reasoning_effort_is_the_templates_or_refused(
    tokenizer: Tokenizer, effort: str, template: str, variables: dict[str, Any] | None
) -> None:
    """A template's own variable, or its switch for no thinking at all; never ignored."""
    request = asked(Conversation(SAID), reasoning_effort=effort)
    if variables is None:
        with pytest.raises(UnsupportedParameterError, match="reasoning_effort"):
            planned(request, HERMES, renderer_of(tokenizer, template))
        return
    (conversation,) = planned(request, HERMES, renderer_of(tokenizer, template)).prompts
    assert isinstance(conversation, Conversation)
    assert conversation.chat_template_kwargs == variables


def test_no_effort_of_a_model_that_does_not_reason(tokenizer: Tokenizer) -> None:
    """There is nothing to turn off; any other effort is refused all the same."""
    families, renderer = OutputFamilies(), renderer_of(tokenizer, "plain")
    (conversation,) = planned(asked(Conversation(SAID), reasoning_effort="none"), families, renderer).prompts
    assert isinstance(conversation, Conversation)
    assert conversation.chat_template_kwargs == {}
    with pytest.raises(UnsupportedParameterError, match="reasoning_effort"):
        planned(asked(Conversation(SAID), reasoning_effort="low"), families, renderer)


def test_what_the_client_says_to_the_template_goes_before_the_effort(tokenizer: Tokenizer) -> None:
    """`chat_template_kwargs` is the more exact of the two."""
    conversation = Conversation(SAID, chat_template_kwargs={"enable_thinking": True})
    (told,) = planned(asked(conversation, reasoning_effort="none"), HERMES, renderer_of(tokenizer, THINKING)).prompts
    assert isinstance(told, Conversation)
    assert told.chat_template_kwargs == {"enable_thinking": True}
