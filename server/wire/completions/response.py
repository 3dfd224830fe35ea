"""The whole Completions answer, made from the folded stream."""

from __future__ import annotations

from typing import Any

from engine.output.result import AnswerResult, ChoiceResult
from server.wire.completions.logprobs import logprobs_object
from server.wire.dialect import AnswerContext, Usage
from server.wire.openai_answer import choice_end, envelope, usage_object, whole_json


def text_completion(context: AnswerContext, result: AnswerResult, usage: Usage, *, logprobs: bool) -> bytes:
    """The `text_completion` object as JSON. Every choice has finished."""
    around = envelope("text_completion", "cmpl", context) | {"usage": usage_object(usage)}
    return whole_json(around, (_choice(context, choice, logprobs=logprobs) for choice in result.choices))


def _choice(context: AnswerContext, choice: ChoiceResult, *, logprobs: bool) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": logprobs_object(choice.records, context.token_bytes) if logprobs else None,
        **choice_end(choice),
    }
