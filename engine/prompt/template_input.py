"""A conversation as a chat template takes it: plain dicts, in the shape that this template understands.

Never text of the prompt. Templates differ in how they want a past tool call (arguments as an object or as JSON text,
content "" or none), and none says so: `probe` finds out by rendering one. Past reasoning goes by the names that the
template reads: `reasoning_content` in most, `reasoning` in some, `thinking` in gpt-oss's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import InvalidRequestError
from engine.prompt.conversation import Conversation, Message, Role, ToolCall
from engine.prompt.template import ChatTemplate

Rewrite = Callable[[str, Role | None], str]
"""What is done to each text of the client's, given the role whose it is: a tool's in calls as in results, None in tools
and chat_template_kwargs."""

_PROBE_NAME = "probe_function"
_PROBE_ARGUMENTS = '{"probe_key": "probe_value"}'
_PROBE_TEXT = "probe text"
_REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class MessageShape:
    """How a template wants its messages."""

    empty_content: str | None = ""
    """The content of an assistant's turn that has tool calls and no text."""
    arguments_as_text: bool = False
    """Tool calls carry JSON text; else the object."""
    knows_developer: bool = False
    """The template tells role `developer` apart; else it is given as `system`, lest it be dropped."""
    reasoning_names: tuple[str, ...] = _REASONING_NAMES[:1]
    """By which the template reads what an assistant's turn thought."""
    text_beside_reasoning: bool = True
    """A turn with calls may have both; else the text is told with the reasoning, as gpt-oss's template tells it."""


def probe(template: ChatTemplate) -> MessageShape:
    """The first shape in which the template shows a past tool call best."""
    knows_developer = Role.DEVELOPER in template.source
    names = tuple(name for name in _REASONING_NAMES if _reads(template, name)) or _REASONING_NAMES[:1]
    shapes = [
        MessageShape(content, as_text, knows_developer, names) for content in ("", None) for as_text in (False, True)
    ]
    best = max(shapes, key=lambda shape: _shown(template, shape))
    return replace(best, text_beside_reasoning=_takes(template, best, "why") or not _takes(template, best, None))


def takes_system_turns(template: ChatTemplate) -> bool:
    """Whether a system prompt reaches the model; some templates raise an error, or leave it out."""
    turns = [Message(Role.SYSTEM, _PROBE_TEXT), Message(Role.USER, "hi")]
    return _PROBE_TEXT in (_rendered(template, turns, MessageShape()) or "")


def _reads(template: ChatTemplate, name: str) -> bool:
    """As a member of something: a message's, for what anyone knows; its own variables may have the same names."""
    return re.search(rf"""\.{name}\b|['"]{name}['"]""", template.source) is not None


def _takes(template: ChatTemplate, shape: MessageShape, reasoning: str | None) -> bool:
    """Whether a turn with a call and text, and with this reasoning, is rendered."""
    call = ToolCall("probe00id", _PROBE_NAME, _PROBE_ARGUMENTS)
    said = Message(Role.ASSISTANT, _PROBE_TEXT, tool_calls=(call,), reasoning_content=reasoning)
    return _rendered(template, [Message(Role.USER, "hi"), said], shape) is not None


def _shown(template: ChatTemplate, shape: MessageShape) -> int:
    """2: name and arguments, as JSON; 1: the name; 0: nothing, an error, or the word None."""
    call = ToolCall("probe00id", _PROBE_NAME, _PROBE_ARGUMENTS)
    turns = [Message(Role.USER, "hi"), Message(Role.ASSISTANT, "", tool_calls=(call,))]
    text = _rendered(template, turns, shape)
    if text is None or _PROBE_NAME not in text or "None" in text:
        return 0
    return 2 if _PROBE_ARGUMENTS.replace(" ", "") in text.replace(" ", "") else 1


def _rendered(template: ChatTemplate, turns: Sequence[Message], shape: MessageShape) -> str | None:
    """None for an error."""
    messages = [_message(turn, shape, lambda text, _: text) for turn in turns]
    try:
        return template.render({"messages": messages, "tools": None, "add_generation_prompt": False})
    except InvalidRequestError:
        return None


def template_variables(conversation: Conversation, shape: MessageShape, rewrite: Rewrite) -> dict[str, Any]:
    """All that comes from the client, with every text of its own rewritten. Roles are not the client's text."""
    kwargs, tools = conversation.chat_template_kwargs, conversation.tools
    return {
        "documents": None,
        **{name: map_texts(value, lambda text: rewrite(text, None)) for name, value in kwargs.items()},
        "messages": [_message(message, shape, rewrite) for message in conversation.messages],
        "tools": map_texts(tools, lambda text: rewrite(text, None)),
        "add_generation_prompt": conversation.add_generation_prompt,
    }


def map_texts(value: Any, rewrite: Callable[[str], str]) -> Any:
    """A copy of a JSON value with every text in it rewritten, keys too."""
    if isinstance(value, str):
        return rewrite(value)
    if isinstance(value, Mapping):
        return {rewrite(key): map_texts(entry, rewrite) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [map_texts(entry, rewrite) for entry in value]
    return value


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from value
        yield from texts_in(list(value.values()))
    elif isinstance(value, Sequence):
        for entry in value:
            yield from texts_in(entry)


def _message(message: Message, shape: MessageShape, rewrite: Rewrite) -> dict[str, Any]:
    role = message.role
    own: dict[str, str | None] = {
        "content": message.text,
        "name": message.name,
        "tool_call_id": message.tool_call_id,
    }
    own |= dict.fromkeys(shape.reasoning_names, message.reasoning_content)
    variables: dict[str, Any] = {"role": _role_name(role, shape)}
    variables |= {name: rewrite(text, role) for name, text in own.items() if text is not None}
    if message.calls_text:
        variables["content"] += rewrite(message.calls_text, Role.TOOL)
    if message.tool_calls:
        if message.reasoning_content and not shape.text_beside_reasoning:
            variables |= _reasoning_with_text(variables, shape)
        variables["content"] = variables["content"] or shape.empty_content
        variables["tool_calls"] = [_tool_call(call, shape, rewrite) for call in message.tool_calls]
    return variables


def _reasoning_with_text(variables: Mapping[str, Any], shape: MessageShape) -> dict[str, str]:
    told = [variables[shape.reasoning_names[0]], variables["content"]]
    return {"content": "", **dict.fromkeys(shape.reasoning_names, "\n".join(filter(None, told)))}


def _role_name(role: Role, shape: MessageShape) -> str:
    return str(Role.SYSTEM if role is Role.DEVELOPER and not shape.knows_developer else role)


def _tool_call(call: ToolCall, shape: MessageShape, rewrite: Rewrite) -> dict[str, Any]:
    """Arguments that are no JSON object stay the text they are: what a model once said must not bar its history."""
    arguments: Any = call.parsed_arguments()
    if arguments is None:
        arguments = call.arguments
    elif shape.arguments_as_text:
        arguments = call.arguments if arguments else "{}"

    def as_data(text: str) -> str:
        return rewrite(text, Role.TOOL)

    function = {"name": as_data(call.name), "arguments": map_texts(arguments, as_data)}
    return {"id": as_data(call.id), "type": "function", "function": function}
