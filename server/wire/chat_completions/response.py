"""The whole Chat Completions answer, made from the folded stream."""

from __future__ import annotations

from typing import Any

from engine.output.result import AnswerResult, ChoiceResult
from server.wire.chat_completions import tool_calls
from server.wire.chat_completions.logprobs import logprobs_object
from server.wire.dialect import AnswerContext, Usage
from server.wire.openai_answer import choice_end, envelope, usage_object, whole_json


def chat_completion(context: AnswerContext, result: AnswerResult, usage: Usage, *, logprobs: bool) -> bytes:
    """The `chat.completion` object as JSON. Every choice has finished."""
    around = envelope("chat.completion", "chatcmpl", context) | {"usage": usage_object(usage)}
    return whole_json(around, (_choice(context, choice, logprobs=logprobs) for choice in result.choices))


def _choice(context: AnswerContext, choice: ChoiceResult, *, logprobs: bool) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": _message(context, choice),
        "logprobs": logprobs_object(choice.records, context.token_bytes) if logprobs else None,
        **choice_end(choice),
    }


def _message(context: AnswerContext, choice: ChoiceResult) -> dict[str, Any]:
    """Reasoning and calls are there only where there are some, as in the stream."""
    content = choice.text or (None if context.parses_tools else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reasoning := choice.reasoning:
        message |= dict.fromkeys(context.reasoning_fields, reasoning)
    if calls := choice.tool_calls:
        message["tool_calls"] = [tool_calls.whole(context, choice.index, call) for call in calls]
    return message
