"""What a Chat Completions chunk's choice looks like. Pure; the order of the stream is `server.wire.openai_stream`'s."""

from __future__ import annotations

from typing import Any

from engine.output.parsers.parts import Part, ReasoningText, ToolCallArguments, ToolCallBegin
from server.wire.chat_completions import tool_calls
from server.wire.chat_completions.logprobs import logprobs_object
from server.wire.dialect import AnswerContext


class ChatChunkShape:
    """See `server.wire.openai_stream.ChunkShape`: the role comes first; no delta has two kinds of text."""

    object_name = "chat.completion.chunk"
    id_prefix = "chatcmpl"
    logprobs = staticmethod(logprobs_object)

    def __init__(self, context: AnswerContext) -> None:
        self._context = context

    def opening(self, index: int) -> dict[str, Any]:
        """Where calls may come the content may stay null, as in the whole answer."""
        return _choice(index, {"role": "assistant", "content": None if self._context.parses_tools else ""})

    def content(self, index: int, text: str) -> dict[str, Any]:
        return _choice(index, {"content": text})

    def other(self, index: int, part: Part) -> dict[str, Any] | None:
        match part:
            case ReasoningText(text):
                return _choice(index, dict.fromkeys(self._context.reasoning_fields, text))
            case ToolCallBegin():
                return _choice(index, tool_calls.begun(self._context, index, part))
            case ToolCallArguments():
                return _choice(index, tool_calls.grown(part))
            case _:
                return None  # that a call is complete shows in what follows it

    def end(self, index: int) -> dict[str, Any]:
        return _choice(index, {})


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
