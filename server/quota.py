"""What one API key has in use, against its own bounds. Never a clock of its own, and never the server's bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from server.auth import ApiKey
from server.rates import Bucket, Slots

Reason: TypeAlias = Literal[
    "draining",
    "engine_down",
    "queue_full",
    "queue_tokens",
    "max_streams",
    "key_concurrency",
    "key_requests_rate",
    "key_tokens_rate",
    "body_bytes",
]
"""Why a request was not admitted: a metric's label."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A bound that is reached."""

    reason: Reason
    message: str
    """Which bound, and what to do."""
    seconds: float | None = None
    """Until there is room; None: nothing was measured."""


class KeyUsage:
    """One key's requests that run now, and what it used of its requests and tokens a minute.

    A prompt is charged when its request is admitted, the generated tokens when it has ended.
    """

    def __init__(self, key: ApiKey, now: float) -> None:
        self._key = key
        self._slots = Slots()
        self._requests = Bucket(key.requests_per_minute, now) if key.requests_per_minute else None
        self._tokens = Bucket(key.tokens_per_minute, now) if key.tokens_per_minute else None

    def enter(self, prompt_tokens: int, now: float) -> None:
        """A request of this key was admitted."""
        self._slots.enter()
        if self._requests is not None:
            self._requests.take(1, now)
        if self._tokens is not None:
            self._tokens.take(prompt_tokens, now)

    def leave(self, seconds: float, generated_tokens: int, now: float) -> None:
        """It has ended, after so long."""
        self._slots.leave(seconds)
        if self._tokens is not None:
            self._tokens.take(generated_tokens, now)

    def refusal(self, prompt_tokens: int, now: float) -> Refusal | None:
        """The first bound that one more request would break."""
        key = self._key
        whose = f"the API key {key.name!r}"
        if key.max_concurrent is not None and self._slots.taken >= key.max_concurrent:
            message = f"{whose} has {self._slots.taken} requests running, the most it may have; wait for one to end"
            return Refusal("key_concurrency", message, self._slots.seconds_until_free())
        if self._requests is not None and (seconds := self._requests.seconds_until(1, now)):
            message = f"{whose} may send {key.requests_per_minute} requests a minute; send fewer"
            return Refusal("key_requests_rate", message, seconds)
        if self._tokens is not None and (seconds := self._tokens.seconds_until(prompt_tokens, now)):
            message = (
                f"{whose} may use {key.tokens_per_minute} tokens a minute, prompts and answers together; use fewer"
            )
            return Refusal("key_tokens_rate", message, seconds)
        return None
