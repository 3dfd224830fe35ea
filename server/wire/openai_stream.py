"""Output steps to the chunks of OpenAI's two completion APIs: text, one finish chunk a choice, usage last, `[DONE]`.

Pure. What a choice looks like is each dialect's own `ChunkShape`; the order of a stream is here, once.
Source: the streaming references of the OpenAI API, and what its Python SDK accumulates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.output.events import OutputStep, TokenRecord
from engine.output.parsers.parts import ContentText, Part, ToolCallBegin
from server.wire import sse
from server.wire.dialect import AnswerContext, Usage
from server.wire.errors import ErrorFacts
from server.wire.openai_answer import ending, envelope, usage_object, usage_so_far
from server.wire.openai_errors import error_frame


class ChunkShape(Protocol):
    """A dialect's own words."""

    object_name: str
    id_prefix: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice that comes before any text, if the dialect has one."""

    def content(self, index: int, text: str) -> dict[str, Any]:
        """A choice with more of its answer."""

    def other(self, index: int, part: Part) -> dict[str, Any] | None:
        """A choice with what is new of it beside content; None where the dialect has no word for this."""

    def end(self, index: int) -> dict[str, Any]:
        """A choice's last word, which gets the reason."""

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
        self._called = [False] * context.choices
        self._plain = not fields.logprobs and not fields.continuous_usage
        hole = sse.FrameTemplate.hole()
        around = [self._chunk(shape.content(index, hole)) for index in range(context.choices)]
        self._templates = [sse.FrameTemplate(chunk) for chunk in around]

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
        frames = self._part_frames(step)
        if step.finished is not None and step.finished.failure is None:
            end = self._shape.end(step.index) | ending(step.finished, called=self._called[step.index])
            frames.append(sse.frame(self._chunk(end)))
        return frames

    def _part_frames(self, step: OutputStep) -> list[bytes]:
        frames = []
        records = step.records
        for part in step.parts:
            if isinstance(part, ContentText):
                frames.append(self._content(step.index, part.text, records))
                records = None
            else:
                self._called[step.index] |= isinstance(part, ToolCallBegin)
                choice = self._shape.other(step.index, part)
                if choice is not None:
                    frames.append(sse.frame(self._chunk(choice)))
        if records:  # of tokens whose text went before, or that have none
            frames.append(self._content(step.index, "", records))
        return frames

    def _content(self, index: int, text: str, records: Sequence[TokenRecord] | None) -> bytes:
        if self._plain:
            return self._templates[index].fill(text)
        choice = self._shape.content(index, text)
        if self._fields.logprobs:
            choice["logprobs"] = self._shape.logprobs(records or (), self._context.token_bytes)
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
