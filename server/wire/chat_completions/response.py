"""The whole Chat Completions answer, made from the folded stream."""

from __future__ import annotations

from typing import Any

from engine.output.result import AnswerResult, ChoiceResult
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
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": logprobs_object(choice.records, context.token_bytes) if logprobs else None,
        "finish_reason": choice_end(choice),
    }
