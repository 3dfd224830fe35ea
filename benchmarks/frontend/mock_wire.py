"""The bytes of a step, as vLLM's own encoder makes them, at a price that leaves the machine to the front end.

Never a layout of its own: what all outputs share is cut out of one that vLLM encoded, and what is rare vLLM encodes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec
from vllm.v1.engine import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    UtilityOutput,
)
from vllm.v1.metrics.stats import PrefillStats, SchedulerStats
from vllm.v1.serial_utils import MsgpackEncoder, UtilityResult

EMPTY_ID_AND_TOKENS = b"\xa0\x90"
"""MessagePack: a string of no bytes, a list of no items."""
NO_OUTPUTS_AT = 2
"""In an encoded step without outputs: behind the list's head and the engine's index, both one byte."""

_encoder = MsgpackEncoder()
_plain = msgspec.msgpack.Encoder()


def encoded(message: Any) -> bytes:
    """By vLLM; nothing that is sent here is so large that it would go as a message part of its own."""
    (whole,) = _encoder.encode(message)
    return bytes(whole)


def encoded_tokens(token_id: int) -> bytes:
    """One step's new token ids of one request: always one."""
    return _plain.encode([token_id])


_HEAD, _, _TAIL = encoded(EngineCoreOutput("", [])).partition(EMPTY_ID_AND_TOKENS)
_, _, _LAST_TAIL = encoded(EngineCoreOutput("", [], finish_reason=FinishReason.LENGTH)).partition(EMPTY_ID_AND_TOKENS)


@dataclass(slots=True)
class MockRequest:
    """One request in the mock core."""

    request_id: str
    prompt_tokens: int
    tokens_left: int
    client: int
    arrived_at: float
    position: int
    """In the list of what is said."""
    begun: bool = False
    head: bytes = b""

    def __post_init__(self) -> None:
        self.head = _HEAD + _plain.encode(self.request_id)

    def output(self, tokens: bytes, now: float) -> bytes:
        """What one step says of it. With the last token its end."""
        self.tokens_left -= 1
        if not self.begun:
            self.begun = True
            return self._first_output(tokens, now)
        return self.head + tokens + (_TAIL if self.tokens_left > 0 else _LAST_TAIL)

    def _first_output(self, tokens: bytes, now: float) -> bytes:
        queued = EngineCoreEvent(EngineCoreEventType.QUEUED, self.arrived_at)
        scheduled = EngineCoreEvent(EngineCoreEventType.SCHEDULED, now)
        return encoded(
            EngineCoreOutput(
                self.request_id,
                msgspec.msgpack.decode(tokens),
                finish_reason=None if self.tokens_left > 0 else FinishReason.LENGTH,
                events=[queued, scheduled],
                prefill_stats=PrefillStats(self.prompt_tokens, self.prompt_tokens),
            )
        )


def step_message(outputs: list[bytes], running: int, gone: Collection[str], engine_index: int) -> bytes:
    """One client's share of a step. `gone`: requests that left the engine, where the engine's scheduler names them."""
    stats = SchedulerStats(num_running_reqs=running)
    without = encoded(
        EngineCoreOutputs(engine_index=engine_index, scheduler_stats=stats, finished_requests=set(gone) or None)
    )
    return b"".join((without[:NO_OUTPUTS_AT], _array_head(len(outputs)), *outputs, without[NO_OUTPUTS_AT + 1 :]))


def answer_message(call_id: int, result: Any, engine_index: int) -> bytes:
    """To a question that a front end asks its engine."""
    answer = UtilityOutput(call_id, result=UtilityResult(result))
    return encoded(EngineCoreOutputs(engine_index=engine_index, utility_output=answer))


def _array_head(length: int) -> bytes:
    """Of a MessagePack array; 65,535 requests in one step are more than any engine takes."""
    return bytes([0x90 | length]) if length < 16 else b"\xdc" + length.to_bytes(2, "big")
