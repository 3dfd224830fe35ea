"""Admission decides at once: in, or back later with a measured word on when. Never waits, never looks into a request.

Bounds are of three kinds: the server's state (503), its queue and streams (429), and each key's own (429).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol, TypeAlias

from engine.errors import EngineOverloadedError, EngineUnavailableError
from engine.types import EngineStats
from server.auth import ApiKey
from server.config import ServerConfig
from server.quota import KeyUsage, Reason, Refusal
from server.rates import QueuePace, Slots

Clock: TypeAlias = Callable[[], float]

RETRY_AFTER_SECONDS = (1.0, 120.0)
"""The least and the most that a client is asked to wait. OpenAI's SDKs do not retry after more than 120 s at all."""
UNMEASURED_SECONDS = 1.0
"""What a client is asked to wait where nothing has been measured yet."""


class Engine(Protocol):
    """What admission asks of `engine.core.EngineCore`."""

    @property
    def ready(self) -> bool: ...

    @property
    def failure(self) -> str | None: ...

    @property
    def retry_after(self) -> float: ...

    paused: str | None
    scheduled_total: int

    def stats(self) -> EngineStats: ...


class Ticket:
    """One admitted request's place. `close` on every way out; both methods may be called any number of times."""

    def __init__(self, admission: Admission, usage: KeyUsage | None, prompt_tokens: int) -> None:
        self._admission = admission
        self._usage = usage
        self._queued_prompt_tokens = prompt_tokens
        self._closed = False
        admission.queued_prompt_tokens += prompt_tokens
        self._began_at = admission.clock()

    def scheduled(self) -> None:
        """The engine began it: its prompt is no longer in the queue."""
        self._admission.queued_prompt_tokens -= self._queued_prompt_tokens
        self._queued_prompt_tokens = 0

    def close(self, generated_tokens: int = 0) -> None:
        """Frees the stream's and the key's place, and charges what was generated to the key's tokens a minute."""
        self.scheduled()
        if self._closed:
            return
        self._closed = True
        now = self._admission.clock()
        self._admission.streams.leave(now - self._began_at)
        if self._usage is not None:
            self._usage.leave(now - self._began_at, generated_tokens, now)


class Admission:
    """The bounds, what is in use of them, and the state that a draining server is in."""

    def __init__(self, core: Engine, config: ServerConfig, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.draining = False
        self.rejections: Counter[Reason] = Counter()
        """Requests refused, each counted once."""
        self.streams = Slots()
        """Requests that were admitted and have not ended, streamed or whole."""
        self.queued_prompt_tokens = 0
        """Prompt tokens of admitted requests that the engine has not begun."""
        self.bodies = BodyBudget(config.max_body_bytes_in_flight, self._refuse)
        self._core = core
        self._config = config
        self._pace = QueuePace()
        self._usage: dict[str, KeyUsage] = {}

    @property
    def ready(self) -> bool:
        return self._core.ready and not self.draining

    def check(self, key: ApiKey | None = None) -> None:
        """What can be said before a request is tokenized; raises as `admit` does, and takes nothing."""
        self._check(self._usage_of(key), sequences=1, prompt_tokens=1)

    def admit(self, key: ApiKey | None, *, sequences: int, prompt_tokens: int) -> Ticket:
        """A place for a request of so many choices, to be closed when it ends.

        Raises `EngineUnavailableError` or `EngineOverloadedError` when it can't be taken now, with the bound that is
        reached. Where nothing waits, one request is always let in, however large it is.
        """
        usage = self._usage_of(key)
        self._check(usage, sequences, prompt_tokens)
        self.streams.enter()
        if usage is not None:
            usage.enter(prompt_tokens, self.clock())
        return Ticket(self, usage, prompt_tokens)

    def _usage_of(self, key: ApiKey | None) -> KeyUsage | None:
        """Kept for as long as the server runs: there are as many as there are configured keys."""
        if key is None:
            return None
        if key.name not in self._usage:
            self._usage[key.name] = KeyUsage(key, self.clock())
        return self._usage[key.name]

    def _check(self, usage: KeyUsage | None, sequences: int, prompt_tokens: int) -> None:
        self._check_state()
        if usage is not None and (refusal := usage.refusal(prompt_tokens, self.clock())) is not None:
            self._refuse(refusal)
        self._check_queue(sequences, prompt_tokens)

    def _check_state(self) -> None:
        if self.draining:
            self.rejections["draining"] += 1
            raise EngineUnavailableError("the server is draining and takes no new requests; ask another one")
        if not self._core.ready:
            self.rejections["engine_down"] += 1
            reason = self._core.failure or self._core.paused or "the engine is not running"
            raise EngineUnavailableError(reason, retry_after=_bounded(self._core.retry_after))

    def _check_queue(self, sequences: int, prompt_tokens: int) -> None:
        now, waiting, left = self.clock(), self._core.stats().waiting, self._core.scheduled_total
        self._pace.sample(now, left, waiting)
        config, queued = self._config, self.queued_prompt_tokens
        if waiting and waiting + sequences > config.max_queued_requests:
            message = (
                f"{waiting} sequences are waiting; this server queues {config.max_queued_requests}; try again later"
            )
            self._refuse(Refusal("queue_full", message, self._pace.seconds_for(waiting, now, left)))
        bound = config.max_queued_prompt_tokens
        if bound is not None and queued and queued + prompt_tokens > bound:
            message = f"{queued} prompt tokens are waiting; this server queues {bound}; try again later"
            self._refuse(Refusal("queue_tokens", message, self._pace.seconds_for(waiting, now, left)))
        if config.max_num_streams is not None and self.streams.taken >= config.max_num_streams:
            message = f"{self.streams.taken} requests are being answered, the most this server takes; try again later"
            self._refuse(Refusal("max_streams", message, self.streams.seconds_until_free()))

    def _refuse(self, refusal: Refusal) -> NoReturn:
        """A 429."""
        self.rejections[refusal.reason] += 1
        code = "rate_limit_exceeded" if refusal.reason.startswith("key_") else "engine_overloaded"
        seconds = _bounded(refusal.seconds or UNMEASURED_SECONDS)
        raise EngineOverloadedError(refusal.message, retry_after=seconds, code=code)


def _bounded(seconds: float) -> float:
    """A wait that clients keep to."""
    least, most = RETRY_AFTER_SECONDS
    return min(max(seconds, least), most)


class BodyBudget:
    """The bytes of request bodies that the server holds while it reads them, all clients together."""

    def __init__(self, limit_bytes: int | None, refuse: Callable[[Refusal], NoReturn]) -> None:
        self.in_flight_bytes = 0
        self._limit_bytes = limit_bytes
        self._refuse = refuse

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """One body's share: tell it of each part that came. It raises `EngineOverloadedError` for one that is too much.

        What was only declared counts for nothing. One body alone always has room.
        """
        held = 0

        def came(size_bytes: int) -> None:
            nonlocal held
            others, limit = self.in_flight_bytes - held, self._limit_bytes
            if limit is not None and others and self.in_flight_bytes + size_bytes > limit:
                message = f"{self.in_flight_bytes} bytes of request bodies are being read, the most this server takes"
                self._refuse(Refusal("body_bytes", f"{message} at once; try again later"))
            held += size_bytes
            self.in_flight_bytes += size_bytes

        try:
            yield came
        finally:
            self.in_flight_bytes -= held
