"""Chat Completions' messages: validated by role, and put into the engine's conversation.

Never an image or a sound: parts other than text are refused by name.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from engine.prompt.conversation import Message, Role, ToolCall
from server.wire.door import items

MEDIA = {
    "audio_url": "audio",
    "file": "files",
    "image_embeds": "images",
    "image_url": "images",
    "input_audio": "audio",
    "input_image": "images",
    "refusal": "refusals",
    "video_url": "video",
}
"""Parts that clients of other models send, by what they hold."""


def _only_text(kind: object) -> object:
    if isinstance(kind, str) and kind in MEDIA:
        raise ValueError(
            f"{MEDIA[kind]} ({kind}) can't be read by this model, which takes text only; nothing is fetched"
        )
    return kind


class TextPart(BaseModel):
    """The one kind of content part that a text model takes."""

    model_config = ConfigDict(frozen=True)

    type: Annotated[Literal["text"], BeforeValidator(_only_text)]
    text: str


MAX_MESSAGES = 10_000
MAX_PARTS = 10_000
Content = str | Annotated[list[TextPart], items(MAX_PARTS)]


def joined(content: Content) -> str:
    """Parts are lines, as vLLM joins them."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


class _Turn(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str | None = None


class InstructionTurn(_Turn):
    """What the operator of the application says."""

    role: Literal["system", "developer"]
    content: Content

    def lower(self) -> Message:
        return Message(Role(self.role), joined(self.content), name=self.name)


class UserTurn(_Turn):
    """What the user says."""

    role: Literal["user"]
    content: Content

    def lower(self) -> Message:
        return Message(Role.USER, joined(self.content), name=self.name)


class CalledFunction(BaseModel):
    """The function of a call: its name, and its arguments as JSON text."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(min_length=1)
    arguments: str = ""


class CalledTool(BaseModel):
    """One call that the assistant made."""

    model_config = ConfigDict(frozen=True)

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantTurn(_Turn):
    """What the model said before; content may be null when it called tools."""

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: Annotated[list[CalledTool], items(1_000)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same, by its other name."""

    def lower(self) -> Message:
        calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in self.tool_calls or ())
        content = None if self.content is None else joined(self.content)
        reasoning = self.reasoning_content or self.reasoning
        return Message(Role.ASSISTANT, content, name=self.name, tool_calls=calls, reasoning_content=reasoning)


class ToolTurn(_Turn):
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str | None = None

    def lower(self) -> Message:
        return Message(Role.TOOL, joined(self.content), name=self.name, tool_call_id=self.tool_call_id)


Turn = Annotated[InstructionTurn | UserTurn | AssistantTurn | ToolTurn, Field(discriminator="role")]
Turns = Annotated[list[Turn], items(MAX_MESSAGES, least=1)]
