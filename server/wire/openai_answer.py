"""What OpenAI's two completion APIs say in the same words: usage, finish reasons, tokens as strings, log probabilities.

Never a whole chunk: each dialect composes its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from engine.output.events import Finished
from engine.output.result import ChoiceResult
from engine.types import FinishReason
from server.wire.dialect import AnswerContext, Usage
from server.wire.sse import ascii_json

LOGPROB_FLOOR = -9999.0
"""What minus infinity becomes: JSON has no infinity, and the hosted API uses this number."""
_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.ABORT: "abort"}


def ending(finished: Finished, *, called: bool) -> dict[str, Any]:
    """Why a choice ended, where that is no failure: OpenAI's word, and vLLM's for the client's stop that ended it.

    `tool_calls` only where a call was delivered and the model ended by itself: not for `length` nor a stop string.
    """
    by_itself = finished.reason is FinishReason.STOP and finished.stop is None
    reason = "tool_calls" if called and by_itself else _REASONS[finished.reason]
    return {"finish_reason": reason, "stop_reason": finished.stop}


def envelope(object_name: str, id_prefix: str, context: AnswerContext) -> dict[str, Any]:
    """What a whole answer and each chunk of a stream say around their choices."""
    return {
        "id": f"{id_prefix}-{context.request_id}",
        "object": object_name,
        "created": context.created,
        "model": context.model,
        "system_fingerprint": context.system_fingerprint,
    }


def whole_json(around: dict[str, Any], choices: Iterable[dict[str, Any]]) -> bytes:
    """An envelope's JSON with its choices, each made apart: the encoder lets no other thread run until it is done."""
    pieces = [ascii_json(choice) for choice in choices]
    return b'%b,"choices":[%b]}' % (ascii_json(around)[:-1], b",".join(pieces))


def choice_end(choice: ChoiceResult) -> dict[str, Any]:
    """`ending` of a folded choice; `ValueError` if it has not finished."""
    if choice.finished is None:
        raise ValueError(f"choice {choice.index} has not finished")
    return ending(choice.finished, called=bool(choice.tool_calls))


def usage_so_far(usage: Usage) -> dict[str, Any]:
    """The counts that a stream's chunk can give; the details come with the last one."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    return usage_so_far(usage) | {
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def token_string(data: bytes) -> str:
    r"""A token's bytes as printable text; what is not whole UTF-8 is `bytes:\xNN...`, so no two tokens look alike."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def logprob_number(logprob: float) -> float:
    """A finite JSON number: minus infinity (and any NaN of the engine's) becomes the floor."""
    return max(logprob, LOGPROB_FLOOR) if math.isfinite(logprob) else LOGPROB_FLOOR
