"""Chat Completions' tool calls: as they grow in a stream, and whole. Pure.

Never a new id for a known call: an id is the model's own, or follows from the request, the choice and the call.
"""

from __future__ import annotations

import hashlib
from typing import Any

from engine.output.parsers.parts import ToolCallArguments, ToolCallBegin
from engine.output.result import ToolCallResult
from server.wire.dialect import AnswerContext

ID_CHARACTERS = 24


def begun(context: AnswerContext, choice: int, part: ToolCallBegin) -> dict[str, Any]:
    """A call's first delta: the only one that says who it is."""
    call = _call(_call_id(context, choice, part.index, part.id), part.name, "")
    return {"tool_calls": [{"index": part.index} | call]}


def grown(part: ToolCallArguments) -> dict[str, Any]:
    """Each later delta of a call."""
    return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def whole(context: AnswerContext, choice: int, call: ToolCallResult) -> dict[str, Any]:
    """A call of a whole answer: its deltas, folded."""
    return _call(_call_id(context, choice, call.index, call.id), call.name, call.arguments)


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _call_id(context: AnswerContext, choice: int, index: int, own: str | None) -> str:
    if own is not None:
        return own
    name = f"{context.request_id}/{choice}/{index}".encode()
    return f"call_{hashlib.blake2b(name, digest_size=ID_CHARACTERS // 2).hexdigest()}"
