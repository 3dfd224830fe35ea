"""What one choice says, event by event; the stream, the whole answer and the tests are made from these.

Never a vendor's shape: the server's encoders give each event one.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import EngineError, EngineUnavailableError, GenerationFailedError
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


@dataclass(slots=True)
class TextDelta:
    """Newly released text, and the tokens whose text is complete with it."""

    text: str
    records: list[TokenRecord] | None = None
    """One for each of these tokens where log probabilities were asked for, else None."""

    def extend(self, newer: TextDelta) -> None:
        """Takes in what was released next."""
        self.text += newer.text
        if self.records is None:
            self.records = newer.records
        elif newer.records is not None:
            self.records += newer.records


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


@dataclass(slots=True)
class OutputStep:
    """What is new of one choice since its consumer last took something: one merged delta, and perhaps the end."""

    index: int
    """The choice, from 0 within its request."""
    delta: TextDelta | None = None
    finished: Finished | None = None
    completion_tokens: int = 0
    """Tokens of this choice so far as usage counts them: generated, less what a stop cut off."""
    released_tokens: int = 0
    """Tokens that this step's events complete; they count as written once the socket took the events."""

    def merge(self, newer: OutputStep) -> None:
        """Takes in a later step of the same choice."""
        if newer.delta is not None:
            if self.delta is None:
                self.delta = newer.delta
            else:
                self.delta.extend(newer.delta)
        self.finished = newer.finished
        self.completion_tokens = newer.completion_tokens
        self.released_tokens += newer.released_tokens
