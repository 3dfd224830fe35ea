"""Requests of `/tokenize` and `/detokenize`, in vLLM's shape: text or a conversation to token ids, and back."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict

from engine.errors import InvalidRequestError
from engine.prompt.conversation import Conversation
from server.wire.chat_completions.messages import Turns
from server.wire.chat_completions.tools import Tools
from server.wire.door import MAX_TOKEN_IDS, items


class TokenizeRequest(BaseModel):
    """Either `prompt` or `messages`."""

    model_config = ConfigDict(frozen=True)

    model: str | None = None
    prompt: str | None = None
    messages: Turns | None = None
    add_special_tokens: bool = True
    """Of a prompt only: a chat template writes its own."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None

    def source(self) -> str | Conversation:
        """What is to be tokenized."""
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequestError("send either prompt or messages", param="prompt")
        if self.prompt is not None:
            return self.prompt
        return Conversation(
            messages=[turn.lower() for turn in self.messages or ()],
            tools=[tool.as_sent for tool in self.tools or ()],
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            chat_template_kwargs=self.chat_template_kwargs or {},
        )


class DetokenizeRequest(BaseModel):
    """Token ids to text, special tokens shown."""

    model_config = ConfigDict(frozen=True)

    model: str | None = None
    tokens: Annotated[list[int], items(MAX_TOKEN_IDS)]
