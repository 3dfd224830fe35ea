"""The Chat Completions request: validated at the door, lowered to what the engine is asked for.

Never an engine call. Known fields that can't be honoured are refused by name; unknown ones are named in the log.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.output.result import AnswerResult
from engine.prompt.conversation import Conversation
from engine.prompt.lowering import GenerateRequest
from server.wire.chat_completions.encoder import ChatChunkShape
from server.wire.chat_completions.messages import Turns
from server.wire.chat_completions.response import chat_completion
from server.wire.chat_completions.tools import Choice, Tools, lower_choice
from server.wire.dialect import AnswerContext, StreamEncoder, Usage
from server.wire.door import items
from server.wire.openai_stream import OpenAIStreamEncoder, StreamFields
from server.wire.sampling_fields import INT64, SamplingFields

MAX_TOP_LOGPROBS = 20


class ChatRequest(SamplingFields):
    """See `server.wire.dialect.ParsedRequest`."""

    refused: ClassVar[dict[str, str]] = SamplingFields.refused | {
        "audio": "the model answers with text only",
        "echo": "this server answers with the completion only",
        "function_call": "deprecated in favour of tool_choice",
        "functions": "deprecated in favour of tools",
        "moderation": "this server has no moderation model",
        "prediction": "this engine takes no predicted output",
        "web_search_options": "this server does not search",
    }
    bounded: ClassVar[dict[str, str]] = {
        "modalities": "the model answers with text only",
        "reasoning_effort": "where the model's chat template knows it, or has a switch for `none`",
        "tool_choice": "a call is forced by grammar",
        "tools": "in the formats known here (engine.tool_parser)",
    }

    messages: Turns
    max_tokens: int | None = Field(None, ge=1, le=INT64)
    max_completion_tokens: int | None = Field(None, ge=1, le=INT64)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Tools | None = None
    tool_choice: Choice = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Annotated[str, Field(pattern=r"^[a-z]{1,16}$")] | None = None
    modalities: Annotated[list[str], items(16)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def lower(self, request_id: str) -> GenerateRequest:
        self.refuse_unsupported()
        completion_field = self.max_completion_tokens is not None
        return GenerateRequest(
            request_id=request_id,
            prompts=(self.conversation(),),
            sampling=self.sampling(self._top_logprobs()),
            text=self.text_params(),
            max_tokens=self.max_completion_tokens if completion_field else self.max_tokens,
            max_tokens_field="max_completion_tokens" if completion_field else "max_tokens",
            n=self.n or 1,
            simulation=None if self.simulate is None else self.simulate.lower(),
            structure=self.structure(),
            tool_choice=lower_choice(
                self.tools or (), self.tool_choice, parallel=self.parallel_tool_calls is not False
            ),
            include_reasoning=self.include_reasoning is not False,
            reasoning_effort=self.reasoning_effort,
            priority=self.priority or 0,
            cache_salt=self.cache_salt,
            bad_words=tuple(self.bad_words or ()),
            truncate_prompt_tokens=self.truncate_prompt_tokens,
        )

    def conversation(self) -> Conversation:
        return Conversation(
            messages=[turn.lower() for turn in self.messages],
            tools=self._told_tools(),
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=bool(self.continue_final_message),
            chat_template_kwargs=self.chat_template_kwargs or {},
        )

    def _told_tools(self) -> list[dict[str, Any]] | None:
        """As they were sent. Tools that are not to be called are not shown to the model, which might call them."""
        if self.tool_choice == "none":
            return None
        return [tool.as_sent for tool in self.tools or ()]

    def encoder(self, context: AnswerContext) -> StreamEncoder:
        fields = StreamFields(self.include_usage, self.continuous_usage, bool(self.logprobs))
        return OpenAIStreamEncoder(ChatChunkShape(context), context, fields)

    def whole(self, context: AnswerContext, result: AnswerResult, usage: Usage) -> bytes:
        return chat_completion(context, result, usage, logprobs=bool(self.logprobs))

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        if self.modalities not in (None, ["text"]):
            raise UnsupportedParameterError("modalities", self.bounded["modalities"])

    def _top_logprobs(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs is only allowed when logprobs is true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None
