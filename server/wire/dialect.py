"""What every API dialect gives the rest of the server: a parsed request, a stream encoder, a whole answer, an error.

Never a dialect itself, and never a socket: bytes are handed to delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.output.events import OutputStep
from engine.output.result import AnswerResult
from engine.prompt.lowering import GenerateRequest
from server.lifecycle import Phase
from server.wire.errors import ErrorFacts

REASONING_FIELDS = {
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "both": ("reasoning_content", "reasoning"),
}
"""What reasoning is called, by the words of `server.reasoning_field`."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, as usage counts them."""

    prompt_tokens: int
    """Tokens of all prompts, each once however many choices it has."""
    completion_tokens: int
    cached_tokens: int = 0
    """Of the prompt tokens, those whose KV blocks were reused."""
    reasoning_tokens: int = 0
    """Of the completion tokens, those whose text is reasoning."""


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """What an answer says of itself, and what its encoder may look up."""

    request_id: str
    created: int
    """Unix time, whole seconds."""
    model: str
    prompt_tokens: int
    choices: int
    token_bytes: Callable[[int], bytes]
    """The bytes that a token id contributes."""
    system_fingerprint: str = ""
    """Changes when the model, the engine or the server does."""
    parses_tools: bool = False
    """Tool calls are looked for in the text."""
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    """What reasoning is called on the wire."""


class StreamEncoder(Protocol):
    """One stream's output steps to bytes. Pure; called in order: start, encode any number of times, finish or error."""

    keepalive: bytes
    """What may be written between any two events."""

    def start(self) -> bytes:
        """What comes before the first token."""

    def encode(self, steps: Sequence[OutputStep]) -> bytes:
        """The frames of these steps, perhaps none."""

    def finish(self, usage: Usage) -> bytes:
        """Usage where asked for, and the success terminal."""

    def error(self, facts: ErrorFacts) -> bytes:
        """The event that ends a failed stream, with no success terminal."""


class ParsedRequest(Protocol):
    """A client's request, validated: one of each dialect."""

    @property
    def asked_model(self) -> str | None: ...

    @property
    def streams(self) -> bool: ...

    @property
    def ignored_fields(self) -> tuple[str, ...]:
        """Fields that the client sent and this API does not know."""

    @property
    def asked_timeouts(self) -> Mapping[Phase, float]:
        """The most seconds that the client wants to wait, by phase."""

    def lower(self, request_id: str) -> GenerateRequest:
        """What the engine is asked for."""

    def encoder(self, context: AnswerContext) -> StreamEncoder: ...

    def whole(self, context: AnswerContext, result: AnswerResult, usage: Usage) -> bytes:
        """The whole answer's JSON."""
