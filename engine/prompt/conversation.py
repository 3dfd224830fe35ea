"""A conversation as every API's request is lowered to it: frozen records, normalized once, whatever door they came by.

Never a template, never token ids. What can't be a conversation is an `InvalidRequestError` when the record is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine.errors import InvalidRequestError

MAX_NESTING = 100
"""Objects and lists within one another in tools, arguments and template variables: what runs over them recurses."""


class Role(StrEnum):
    """Who speaks: a closed set, since templates write the role as it is into the prompt's scaffold."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"

    @classmethod
    def parse(cls, text: str) -> Role:
        """The role of that name; `InvalidRequestError` for any other text."""
        try:
            return cls(text)
        except ValueError:
            known = ", ".join(cls)
            raise InvalidRequestError(f"unknown role {text[:64]!r}; roles are {known}", param="messages") from None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the assistant made in an earlier turn."""

    id: str
    name: str
    arguments: str
    """JSON text, as APIs carry it."""

    def parsed_arguments(self) -> dict[str, Any] | None:
        """The arguments as an object: `{}` for "" and "null"; None for what is no JSON object, or too deep."""
        try:
            value = json.loads(self.arguments) if self.arguments.strip() else {}
        except (ValueError, RecursionError):
            return None
        value = {} if value is None else value
        return value if isinstance(value, dict) and not _too_deep(value) else None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `role` may be given as text, and is then checked."""

    role: Role
    content: str | None
    """Always text once made: None is accepted from an assistant that called tools, and becomes ""."""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """Of a tool's turn: the call that it answers."""
    reasoning_content: str | None = None
    """Of an assistant's turn: what it thought, apart from its answer."""
    calls_text: str = ""
    """Of an assistant's turn, for a template that knows no tools: its calls, written behind the content. Text of the
    client's, other than content in that no tag in it is the model's own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", Role.parse(self.role))
        if self.content is None:
            self._check_may_be_empty()
            object.__setattr__(self, "content", "")

    @property
    def text(self) -> str:
        """The content, typed as what it always is."""
        return self.content or ""

    def _check_may_be_empty(self) -> None:
        if self.role is not Role.ASSISTANT:
            raise InvalidRequestError(f"the content of a message with role {self.role} can't be null", param="messages")
        if not self.tool_calls:
            raise InvalidRequestError("an assistant message needs content or tool_calls", param="messages")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat template is given: messages, tools and its switches."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    """JSON objects in OpenAI's shape, `{"type": "function", "function": {...}}`; an empty list is None."""
    add_generation_prompt: bool | None = None
    """Ends the prompt with the assistant's header. None: unless the final message is continued."""
    continue_final_message: bool = False
    """The final message's content is the end of the prompt, and the model goes on from there."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the template, JSON values, as `{"enable_thinking": false}`."""

    def __post_init__(self) -> None:
        if not self.messages:
            raise InvalidRequestError("messages is empty", param="messages")
        object.__setattr__(self, "tools", self.tools or None)
        for param in ("tools", "chat_template_kwargs"):
            if _too_deep(getattr(self, param)):
                raise InvalidRequestError(f"{param} is nested more than {MAX_NESTING} deep", param=param)
        if self.continue_final_message:
            self._check_continuation()
        if self.add_generation_prompt is None:
            object.__setattr__(self, "add_generation_prompt", not self.continue_final_message)

    def _check_continuation(self) -> None:
        if self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt can't both be true"
            raise InvalidRequestError(message, param="continue_final_message")
        if self.messages[-1].tool_calls:
            message = "the final message ends in tool calls, and can't be continued"
            raise InvalidRequestError(message, param="continue_final_message")


def _too_deep(value: Any) -> bool:
    """Whether a JSON value is nested deeper than `MAX_NESTING`; itself never recurses."""
    level = [value]
    for _ in range(MAX_NESTING + 1):
        containers = [entry for entry in level if isinstance(entry, Mapping | list | tuple)]
        level = [child for entry in containers for child in (entry.values() if isinstance(entry, Mapping) else entry)]
        if not level:
            return False
    return True
