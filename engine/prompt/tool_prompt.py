"""Tools for a model whose chat template knows none: described in the system prompt, in Hermes's format.

Never for a template that knows tools. What is written here is text of the conversation, and guarded like any other.
The format: https://github.com/NousResearch/Hermes-Function-Calling
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.prompt.conversation import Conversation, Message, Role, ToolCall

INSTRUCTIONS = """\
You can call functions to answer the user. They are described by JSON schemas, one a line:
<tools>
{tools}
</tools>
To call a function, write its name and arguments as a JSON object between tags, and nothing after it:
<tool_call>
{{"name": "the function's name", "arguments": {{"the argument's name": "its value"}}}}
</tool_call>"""
_INSTRUCTING = (Role.SYSTEM, Role.DEVELOPER)


def with_tools_as_text(conversation: Conversation, *, system_turns: bool = True) -> Conversation:
    """The same conversation without tools, calls and tools' turns: they are in the other turns' text.

    `system_turns`: the template takes a system prompt; else the first user's turn begins with the description.
    """
    messages = list(_without_tool_turns(conversation.messages))
    if conversation.tools:
        messages = _instructed(messages, _described(conversation.tools), system_turns=system_turns)
    return replace(conversation, messages=messages, tools=None)


def _described(tools: Sequence[Mapping[str, Any]]) -> str:
    lines = (json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    return INSTRUCTIONS.format(tools="\n".join(lines))


def _instructed(messages: list[Message], text: str, *, system_turns: bool) -> list[Message]:
    first, *later = messages
    if first.role in _INSTRUCTING:
        return [replace(first, content=_paragraphs(first.text, text)), *later]
    if system_turns:
        return [Message(Role.SYSTEM, text), *messages]
    if first.role is Role.USER:
        return [replace(first, content=_paragraphs(text, first.text)), *later]
    return [Message(Role.USER, text), *messages]


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


def _without_tool_turns(messages: Sequence[Message]) -> Iterator[Message]:
    """Results that follow one another are one turn of the user's, and what the user says next goes with them.

    Templates that know no tools often want the turns to alternate.
    """
    results: list[str] = []
    for message in messages:
        if message.role is Role.TOOL:
            results.append(f"<tool_response>\n{message.text}\n</tool_response>")
            continue
        told = "\n".join(results)
        results = []
        if told and message.role is Role.USER:
            yield replace(message, content=_paragraphs(told, message.text))
            continue
        if told:
            yield Message(Role.USER, told)
        yield _with_calls_as_text(message) if message.tool_calls else message
    if results:
        yield Message(Role.USER, "\n".join(results))


def _with_calls_as_text(message: Message) -> Message:
    lines = [""] if message.text else []
    return replace(message, tool_calls=(), calls_text="\n".join([*lines, *map(_written, message.tool_calls)]))


def _written(call: ToolCall) -> str:
    """As the model wrote it; arguments that are no JSON stay the text they are."""
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments.strip() or "{}"}}}\n</tool_call>'
