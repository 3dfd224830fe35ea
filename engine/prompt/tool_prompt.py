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


def with_tools_as_text(conversation: Conversation) -> Conversation:
    """The same conversation without tools, calls and tools' turns: they are in the other turns' text."""
    messages = list(_without_tool_turns(conversation.messages))
    if conversation.tools:
        messages = _instructed(messages, conversation.tools)
    return replace(conversation, messages=messages, tools=None)


def _instructed(messages: list[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    text = INSTRUCTIONS.format(tools=lines)
    if messages and messages[0].role in _INSTRUCTING:
        first = messages[0]
        return [replace(first, content=f"{first.text}\n\n{text}" if first.text else text), *messages[1:]]
    return [Message(Role.SYSTEM, text), *messages]


def _without_tool_turns(messages: Sequence[Message]) -> Iterator[Message]:
    """Results that follow one another are one turn of the user's, since templates want the turns to alternate."""
    results: list[str] = []
    for message in messages:
        if message.role is Role.TOOL:
            results.append(f"<tool_response>\n{message.text}\n</tool_response>")
            continue
        if results:
            yield Message(Role.USER, "\n".join(results))
            results = []
        yield _with_calls_as_text(message) if message.tool_calls else message
    if results:
        yield Message(Role.USER, "\n".join(results))


def _with_calls_as_text(message: Message) -> Message:
    written = [message.text] if message.text else []
    return replace(message, content="\n".join([*written, *map(_written, message.tool_calls)]), tool_calls=())


def _written(call: ToolCall) -> str:
    """As the model wrote it; arguments that are no JSON stay the text they are."""
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments.strip() or "{}"}}}\n</tool_call>'
