"""What one choice says, step by step; the stream, the whole answer and the tests are made from these.

Never a vendor's shape: the server's encoders give each event one.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from engine.errors import EngineError, EngineUnavailableError, GenerationFailedError
from engine.output.parsers.parts import ContentText, Part, ReasoningText, ToolCallArguments, append_part
from engine.types import FinishReason, TokenLogprobs


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One generated token, aligned with the answer's text."""

    token_id: int
    data: bytes
    """The token's own bytes: of a partial character, that part."""
    start: int
    end: int
    """The token's span in the answer, in characters; a partial character counts as the whole one."""
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a choice. Nothing of it follows."""

    reason: FinishReason
    stop: str | int | None = None
    """With STOP: the stop string that matched, or the stop token of the client's that ended it."""
    message: str | None = None
    """With ERROR, or an ABORT that is no wish of the client's: what happened."""

    @property
    def failure(self) -> EngineError | None:
        """The error that this end is to the client; None for a good end and for one that the client asked for."""
        if self.reason is FinishReason.ERROR:
            return GenerationFailedError(self.message or "the engine failed")
        if self.reason is FinishReason.ABORT and self.message is not None:
            return EngineUnavailableError(self.message)
        return None


class OutputStep(Struct):
    """What is new of one choice since its consumer last took something: some parts, and perhaps the end."""

    index: int
    """The choice, from 0 within its request."""
    parts: list[Part] = []
    """In the order of the text, neighbours of one kind as one."""
    records: list[TokenRecord] | None = None
    """Where log probabilities were asked for: the tokens whose text is content and complete with these parts."""
    finished: Finished | None = None
    completion_tokens: int = 0
    """Tokens of this choice so far as usage counts them: generated, less what a stop cut off."""
    released_tokens: int = 0
    """Tokens that this step's events complete; they count as written once the socket took the events."""
    reasoning_tokens: int = 0
    """Of `completion_tokens`, those whose text is reasoning."""

    @property
    def text(self) -> str:
        """The content in it."""
        return "".join([part.text for part in self.parts if isinstance(part, ContentText)])

    @property
    def text_bytes(self) -> int:
        """Of its text in UTF-8, whatever it is of."""
        texts = (ContentText, ReasoningText, ToolCallArguments)
        return sum(len(part.text.encode(errors="replace")) for part in self.parts if isinstance(part, texts))

    def merge(self, newer: OutputStep) -> None:
        """Takes in a later step of the same choice."""
        for part in newer.parts:
            append_part(self.parts, part)
        if self.records is None:
            self.records = newer.records
        elif newer.records is not None:
            self.records += newer.records
        self.finished = newer.finished
        self.completion_tokens = newer.completion_tokens
        self.released_tokens += newer.released_tokens
        self.reasoning_tokens = newer.reasoning_tokens
