"""A load client for `/v1/completions` of any OpenAI-style server: so many streams at once, each request of one size.

Its cost is part of what a machine can bear, so it is asyncio's bare protocols: no HTTP library, one parse an event.
Never retries: a request that fails in any way fails the run.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

END_OF_EVENT = b"\n\n"
DATA = b"data: "
DONE = b"[DONE]"
STREAM_TIMEOUT_SECONDS = 300
LOWEST_TOKEN_ID = 100
"""Those below are control tokens."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a server. Prompts are random token ids, so that none is a prefix of another."""

    model: str
    streams: int
    """Requests at once."""
    requests: int
    """Requests in all."""
    prompt_tokens: int
    max_tokens: int
    seed: int = 0
    highest_token_id: int = 40_000

    def bodies(self) -> list[bytes]:
        """The JSON of each request; the same for the same load."""
        source = random.Random(self.seed)
        fixed = {"model": self.model, "max_tokens": self.max_tokens, "temperature": 0, "ignore_eos": True}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return [
            msgspec.json.encode(fixed | stream | {"prompt": prompt})
            for prompt in (
                [source.randrange(LOWEST_TOKEN_ID, self.highest_token_id) for _ in range(self.prompt_tokens)]
                for _ in range(self.requests)
            )
        ]


@dataclass(slots=True)
class StreamRecord:
    """One answer. Times are the monotonic clock's, in seconds."""

    sent_at: float
    text_at: list[float] = field(default_factory=list)
    """When each event with text came."""
    completion_tokens: int = 0
    """What the server's own usage says."""
    done: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """What one load came to; times to first token and between events in milliseconds."""

    tokens: int
    seconds: float
    tokens_per_second: float
    tokens_per_event: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    """Between two events with text: of one token each, if `tokens_per_event` is 1."""
    itl_p99_ms: float
    client_cpu_share: float
    """Of one core. Near 1 the client is the bottleneck, and its figures are its own."""


class Choice(msgspec.Struct):
    """Of a completion chunk, what counts."""

    text: str = ""


class Usage(msgspec.Struct):
    """The last chunk's."""

    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """One event of a stream."""

    choices: list[Choice] = msgspec.field(default_factory=list)
    usage: Usage | None = None
    error: Any = None


class ChunkedBody:
    """Takes HTTP/1.1's chunked transfer coding off, cut anywhere. Source: RFC 9112, section 7.1."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """The body's bytes that these complete."""
        self._buffer += data
        body = bytearray()
        while not self.ended:
            if not self._left:
                end = self._buffer.find(b"\r\n")
                if end < 0:
                    break
                self._left = int(self._buffer[:end].partition(b";")[0], 16) + 2  # the chunk's own line end
                del self._buffer[: end + 2]
                self.ended = self._left == 2
            if len(self._buffer) < self._left:
                break  # the rest of a chunk: servers write an event a chunk, so little is kept
            body += self._buffer[: self._left - 2]
            del self._buffer[: self._left]
            self._left = 0
        return bytes(body)


class EventReader:
    """Puts what a stream's events say into its record. Raises `RuntimeError` for an error event."""

    def __init__(self, record: StreamRecord) -> None:
        self._record = record
        self._buffer = b""
        self._decoder = msgspec.json.Decoder(Chunk)

    def feed(self, body: bytes) -> None:
        *events, self._buffer = (self._buffer + body).split(END_OF_EVENT)
        for event in events:
            if event.startswith(DATA):  # a comment keeps the connection alive and says nothing
                self._take(event[len(DATA) :])

    def _take(self, data: bytes) -> None:
        if data == DONE:
            self._record.done = True
            return
        chunk = self._decoder.decode(data)
        if chunk.error is not None:
            raise RuntimeError(f"the stream ended with an error: {data!r}")
        if any(choice.text for choice in chunk.choices):
            self._record.text_at.append(time.monotonic())
        if chunk.usage is not None:
            self._record.completion_tokens = chunk.usage.completion_tokens


async def stream(url: str, body: bytes) -> StreamRecord:
    """One request on a connection of its own, read to its end."""
    address = urlsplit(url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    record = StreamRecord(time.monotonic())
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{url} refused: {(answer + await reader.read(2000))!r}")
        chunks, events = ChunkedBody(), EventReader(record)
        while not chunks.ended and (data := await reader.read(65536)):
            events.feed(chunks.feed(data))
    finally:
        writer.close()
    if not record.done:
        raise RuntimeError(f"{url}: a stream broke off after {len(record.text_at)} events")
    return record


async def run(url: str, load: Load) -> Summary:
    """The whole load against the server at `url`, closed loop: a stream that ends makes room for the next request."""
    bodies = iter(load.bodies())
    records: list[StreamRecord] = []

    async def worker() -> None:
        for body in bodies:
            async with asyncio.timeout(STREAM_TIMEOUT_SECONDS):
                records.append(await stream(url, body))

    begin, cpu = time.monotonic(), time.process_time()
    async with asyncio.TaskGroup() as workers:
        for _ in range(load.streams):
            workers.create_task(worker())
    return summary(records, time.monotonic() - begin, time.process_time() - cpu)


def summary(records: list[StreamRecord], seconds: float, cpu_seconds: float) -> Summary:
    """Over all streams together; a record without text counts its tokens only."""
    tokens = sum(record.completion_tokens for record in records)
    first = [record.text_at[0] - record.sent_at for record in records if record.text_at]
    gaps = [late - early for record in records for early, late in zip(record.text_at, record.text_at[1:], strict=False)]
    return Summary(
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        tokens_per_event=tokens / max(1, sum(len(record.text_at) for record in records)),
        ttft_p50_ms=percentile(first, 50),
        ttft_p99_ms=percentile(first, 99),
        itl_p50_ms=percentile(gaps, 50),
        itl_p99_ms=percentile(gaps, 99),
        client_cpu_share=cpu_seconds / seconds,
    )


def percentile(seconds: list[float], percent: int) -> float:
    """In milliseconds; not a number where there is nothing to rank."""
    if not seconds:
        return float("nan")
    if len(seconds) == 1:
        return 1000 * seconds[0]
    return 1000 * statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]
