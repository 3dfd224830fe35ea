"""What a request's answers will be read with and held to: decided before the prompt is rendered, and completed after.

Never renders, never parses: it puts the client's wishes and the model's families together, or refuses by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.grammar.calls import CallForm, call_structure
from engine.output.parsers.families import OutputFamilies
from engine.output.parsers.plan import ParsingPlan
from engine.output.parsers.reasoning import ReasoningStart
from engine.output.parsers.registry import DEFAULT_TOOL_FAMILY, tool_family
from engine.prompt.conversation import Conversation
from engine.prompt.lowering import GenerateRequest
from engine.prompt.renderer import PromptRenderer
from engine.prompt.tool_choice import ToolChoice
from engine.prompt.tool_prompt import with_tools_as_text
from engine.types import Structure, TextParams

NO_EFFORT = "none"
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""What templates call it: Qwen3, GLM and others the first, DeepSeek V3.1, Granite and Kimi the second."""
PROMPT_TAIL_TOKENS = 64
"""Enough to see whether a prompt ends in a reasoning marker, which is a few tokens at most."""


def planned(request: GenerateRequest, families: OutputFamilies, renderer: PromptRenderer) -> GenerateRequest:
    """The request with its conversation as the template takes it, its structure, and all of its parsing but the start.

    `InvalidRequestError` for what the model can't be asked.
    """
    conversation = request.prompts[0]
    if not isinstance(conversation, Conversation):
        return request
    if request.reasoning_effort is not None:
        conversation = _with_effort(conversation, request.reasoning_effort, families, renderer)
    conversation = told(conversation, families, renderer)
    structure, plan = _held(request, families)
    shown = None if plan == ParsingPlan() else plan
    text = replace(request.text, parsing=shown)
    return replace(request, prompts=(conversation,), structure=structure, text=text)


def told(conversation: Conversation, families: OutputFamilies, renderer: PromptRenderer) -> Conversation:
    """The conversation as the template is told it: without tools, if it knows none."""
    if families.template_knows_tools:
        return conversation
    return with_tools_as_text(conversation, system_turns=renderer.takes_system_turns)


def started(request: GenerateRequest, prompt: Sequence[int], renderer: PromptRenderer) -> TextParams:
    """How the answers are read, with what the rendered prompt says: is the model before its reasoning, in it, past it.

    `prompt`: the conversation's token ids.
    """
    text = request.text
    plan = text.parsing
    if plan is None or plan.reasoning is None:
        return text
    match request.prompts[0]:
        case Conversation(messages=messages, continue_final_message=True):
            continued = messages[-1].text
        case _:
            continued = ""
    start = plan.reasoning.start(renderer.shown_text(prompt[-PROMPT_TAIL_TOKENS:]), continued)
    return replace(text, parsing=replace(plan, reasoning_start=start))


def _held(request: GenerateRequest, families: OutputFamilies) -> tuple[Structure | None, ParsingPlan]:
    """The structure of the whole answer, and the plan of its parsing."""
    reading = ParsingPlan(families.reasoning, ReasoningStart.BEFORE, request.include_reasoning)
    if request.structure is not None:
        reading = ParsingPlan()  # a grammar holds from the first token on: no reasoning comes before it
    choice = request.tool_choice
    if choice is None:
        return request.structure, reading
    family = families.tools
    if family is None:
        reason = "this model's calls can't be read here: start the server with engine.tool_parser set to its format"
        raise UnsupportedParameterError("tools", reason)
    default = tool_family(DEFAULT_TOOL_FAMILY)
    plan = replace(reading, tools=family, tool_schemas=choice.schemas, parallel_calls=choice.parallel)
    if choice.forced:
        return _calls(request, choice, text_allowed=False), replace(plan, reasoning=None, tools=default)
    if choice.strict and family is default:
        return _calls(request, choice, text_allowed=True), plan
    return request.structure, plan


def _calls(request: GenerateRequest, choice: ToolChoice, *, text_allowed: bool) -> Structure:
    """A grammar of calls. Where they are forced, every model writes them in the default family's format."""
    if request.structure is not None:
        message = f"{request.structure.param} and calls by grammar (tool_choice, strict) can't both shape the answer"
        raise InvalidRequestError(message, param=request.structure.param)
    strict = choice.strict if text_allowed else choice.schemas.keys()
    schemas: Mapping[str, Mapping[str, Any]] = {
        name: schema if name in strict else {} for name, schema in choice.schemas.items()
    }
    return call_structure(schemas, CallForm(parallel=choice.parallel, text_allowed=text_allowed))


def _with_effort(
    conversation: Conversation, effort: str, families: OutputFamilies, renderer: PromptRenderer
) -> Conversation:
    """By the template's own variable for it, and for "none" by the switches that turn thinking off.

    "none" needs neither where the model does not reason.
    """
    told: dict[str, Any] = {"reasoning_effort": effort} if renderer.reads("reasoning_effort") else {}
    if effort == NO_EFFORT:
        told |= {switch: False for switch in THINKING_SWITCHES if renderer.reads(switch)}
    if not told and (effort != NO_EFFORT or families.reasoning is not None):
        raise UnsupportedParameterError("reasoning_effort", "this model's chat template does not know it")
    return replace(conversation, chat_template_kwargs={**told, **conversation.chat_template_kwargs})
