"""Output steps to the chunks of OpenAI's two completion APIs: text, one finish chunk a choice, usage last, `[DONE]`.

Pure. What a choice looks like is each dialect's own `ChunkShape`; the order of a stream is here, once.
Source: the streaming references of the OpenAI API, and what its Python SDK accumulates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.output.events import OutputStep, TextDelta, TokenRecord
from server.wire import sse
from server.wire.dialect import AnswerContext, Usage
from server.wire.errors import ErrorFacts
from server.wire.openai_answer import envelope, finish_reason, usage_object, usage_so_far
from server.wire.openai_errors import error_frame


class ChunkShape(Protocol):
    """A dialect's own words."""

    object_name: str
    id_prefix: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice that comes before any text, if the dialect has one."""

    def text(self, index: int, text: str) -> dict[str, Any]:
        """A choice with new text."""

    def end(self, index: int, reason: str) -> dict[str, Any]:
        """A choice's last word."""

    def logprobs(self, records: Sequence[TokenRecord], token_bytes: Callable[[int], bytes]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class StreamFields:
    """What the client asked of its stream."""

    include_usage: bool = False
    continuous_usage: bool = False
    logprobs: bool = False


class OpenAIStreamEncoder:
    """See `server.wire.dialect.StreamEncoder`."""

    keepalive = sse.KEEPALIVE

    def __init__(self, shape: ChunkShape, context: AnswerContext, fields: StreamFields) -> None:
        self._shape = shape
        self._context = context
        self._fields = fields
        self._completion_tokens = [0] * context.choices
        hole = sse.FrameTemplate.hole()
        self._templates = [sse.FrameTemplate(self._chunk(shape.text(index, hole))) for index in range(context.choices)]

    def start(self) -> bytes:
        openings = map(self._shape.opening, range(self._context.choices))
        return b"".join(sse.frame(self._chunk(opening)) for opening in openings if opening is not None)

    def encode(self, steps: Sequence[OutputStep]) -> bytes:
        return b"".join([frame for step in steps for frame in self._frames(step)])

    def finish(self, usage: Usage) -> bytes:
        if not self._fields.include_usage:
            return sse.DONE
        chunk = self._envelope([])
        chunk["usage"] = usage_object(usage)
        return sse.frame(chunk) + sse.DONE

    def error(self, facts: ErrorFacts) -> bytes:
        return error_frame(facts)

    def _frames(self, step: OutputStep) -> list[bytes]:
        self._completion_tokens[step.index] = step.completion_tokens
        frames = []
        if step.delta is not None and (step.delta.text or step.delta.records):
            frames.append(self._delta(step.index, step.delta))
        if step.finished is not None and step.finished.failure is None:
            end = self._shape.end(step.index, finish_reason(step.finished))
            frames.append(sse.frame(self._chunk(end)))
        return frames

    def _delta(self, index: int, delta: TextDelta) -> bytes:
        if not self._fields.logprobs and not self._fields.continuous_usage:
            return self._templates[index].fill(delta.text)
        choice = self._shape.text(index, delta.text)
        if self._fields.logprobs:
            choice["logprobs"] = self._shape.logprobs(delta.records or (), self._context.token_bytes)
        return sse.frame(self._chunk(choice))

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self._envelope([choice])

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = envelope(self._shape.object_name, self._shape.id_prefix, self._context) | {"choices": choices}
        if self._fields.continuous_usage:
            chunk["usage"] = usage_so_far(Usage(self._context.prompt_tokens, sum(self._completion_tokens)))
        elif self._fields.include_usage:
            chunk["usage"] = None
        return chunk
