"""One answer on a running engine with hand-made `receive` and `send`: every way out closes its account, once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.core import EngineCore
from engine.errors import EngineUnavailableError, GenerationFailedError
from engine.output.events import OutputStep
from engine.types import EngineRequest, TextParams
from server.account import Account
from server.admission import Admission
from server.answer import Answer
from server.client_connection import ClientConnection
from server.config import ServerConfig
from server.delivery import CONNECTION
from server.lifecycle import EndState
from server.metrics import Metrics
from server.plan import AnswerPlan
from server.services import AnswerServices
from server.timer import StreamTimer
from server.wire.completions.request import CompletionRequest
from server.wire.dialect import AnswerContext, StreamEncoder
from server.wire.door import parse_body
from tests.engine.engines import running_core, scripted
from tests.server.replies import chunks_of, folded, frames_of, parsed
from tests.vocabularies import vocabulary

HELLO = [19556, 905]
PEPPER = [187, 249, 230, 131]
"""U+1F336 in four tokens of one byte each."""
Message = dict[str, Any]


class BreakingEncoder:
    """A stream encoder with a bug: it encodes so many times and then fails."""

    def __init__(self, real: StreamEncoder, good_calls: int) -> None:
        self._real = real
        self._good_calls = good_calls
        self.keepalive = real.keepalive
        self.start = real.start
        self.finish = real.finish
        self.error = real.error

    def encode(self, steps: Sequence[OutputStep]) -> bytes:
        self._good_calls -= 1
        if self._good_calls < 0:
            raise ZeroDivisionError("a bug")
        return self._real.encode(steps)


class BuggyRequest(CompletionRequest):
    """A request whose dialect has that bug."""

    def encoder(self, context: AnswerContext) -> StreamEncoder:
        return BreakingEncoder(super().encoder(context), good_calls=1)


class Client:
    """The other side of the connection: keeps what it is sent, and leaves when told to."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()
        self.answered = asyncio.Event()
        self.slow_until: Callable[[], Awaitable[None]] | None = None
        """What it waits for before it takes anything but headers."""

    async def receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.answered.set()
            if self.slow_until is not None:
                await self.slow_until()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def was_ended(self) -> bool:
        return bool(self.sent) and not self.sent[-1].get("more_body", True)


@pytest.fixture
async def core() -> AsyncIterator[EngineCore]:
    """The simulated engine, as fast as it goes."""
    async with running_core(vocabulary("smollm2")) as engine:
        yield engine


class Run:
    """An answer to a scripted request, and its closed accounts."""

    def __init__(self, core: EngineCore, request: EngineRequest, *, stream: bool, buggy: bool = False) -> None:
        body = json.dumps({"prompt": "x", "stream": stream, "logprobs": request.sampling.logprobs}).encode()
        plan = AnswerPlan(
            parse_body(BuggyRequest if buggy else CompletionRequest, body),
            [request],
            TextParams(),
            AnswerContext("r", 0, "m", 1, 1, core.vocabulary.token_bytes),
            key=None,
            body=body,
        )
        self.closed: list[Account] = []
        config = ServerConfig()
        self.admission = Admission(core, config)
        metrics = Metrics(core, model_name="m", queue_limit=10)
        services = AnswerServices(core, self.admission, config, metrics, StreamTimer(), {}, self.closed.append)
        self.answer = Answer(services, plan, Account("r", "/", "m", streams=stream, started_at=0))
        self.client = Client()
        self.connection: ClientConnection | None = None
        """What the client's connection is and tells; None: one that tells nothing."""

    async def __call__(self) -> Account:
        """Runs it to its end; whatever it raises, its one account is closed."""
        scope = {"type": "http", "extensions": {CONNECTION: self.connection or ClientConnection()}}
        try:
            await self.answer(scope, self.client.receive, self.client.send)
        finally:
            await turns_until(lambda: bool(self.closed))
            (self.account,) = self.closed
        return self.account


async def turns_until(condition: Callable[[], bool]) -> None:
    """Gives the loop to others until it is so; its turns are counted."""
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come so far")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_complete_answer(core: EngineCore, stream: bool) -> None:
    """Everything generated was written, and nothing is left in the engine."""
    run = Run(core, scripted("a", HELLO), stream=stream)
    account = await run()
    body = run.client.body
    assert folded(chunks_of(body) if stream else [json.loads(body)]).text == "Hello world"
    assert account.end_state == "completed"
    assert (account.generated_tokens, account.written_tokens, account.written_bytes) == (2, 2, len(body))
    assert core.live_sequences == 0


class ShortWay(ClientConnection):
    """A connection that takes parts of a body as they are, while it is not full."""

    def __init__(self, client: Client, full_every: int | None = None) -> None:
        self._client = client
        self._full_every = full_every
        self.parts: list[bytes] = []
        self._looks = 0

    @property
    def congested(self) -> bool:
        self._looks += 1
        return self._full_every is not None and self._looks % self._full_every == 0

    def write_part(self, data: bytes) -> bool:
        if self.congested:
            return False
        self.parts.append(data)
        self._client.sent.append({"body": data, "more_body": True})
        return True


@pytest.mark.parametrize("full_every", [None, 3, 5, 7])
@pytest.mark.parametrize("logprobs", [None, 1])
async def test_both_ways_out_say_the_same(core: EngineCore, full_every: int | None, logprobs: int | None) -> None:
    """Frames written from within the engine's step are those that go as messages, in order, wherever one must wait."""
    request = scripted("a", [*HELLO, *PEPPER, 1] * 20)
    request = replace(request, sampling=replace(request.sampling, logprobs=logprobs))
    plain, short = Run(core, request, stream=True), Run(core, request, stream=True)
    short.connection = connection = ShortWay(short.client, full_every)
    accounts = [await plain(), await short()]
    assert folded(chunks_of(short.client.body)) == folded(chunks_of(plain.client.body))
    assert [account.written_tokens for account in accounts] == [140, 140]
    assert accounts[1].written_bytes == len(short.client.body)
    assert len(connection.parts) > 5
    if full_every is None:
        assert short.client.body == plain.client.body


async def test_a_fault_on_the_short_way_is_the_streams_own(core: EngineCore) -> None:
    """A bug in encoding ends that stream with its error event, and the engine goes on."""
    run = Run(core, scripted("a", [905] * 50), stream=True, buggy=True)
    run.connection = ShortWay(run.client)
    with pytest.raises(ZeroDivisionError):
        await run()
    assert "error" in parsed(frames_of(run.client.body)[-1])
    assert core.ready
    assert (await Run(core, scripted("b", HELLO), stream=True)()).end_state == "completed"


async def test_a_slow_reader_gets_everything_in_one_piece(core: EngineCore) -> None:
    """While its socket is full, new text, tokens and log probabilities merge into the one step that waits."""
    request = scripted("a", HELLO * 200)
    run = Run(core, replace(request, sampling=replace(request.sampling, logprobs=0)), stream=True)
    run.client.slow_until = core.wait_idle
    account = await run()
    chunks = chunks_of(run.client.body)
    reply = folded(chunks)
    assert reply.text == "Hello world" * 200
    assert reply.choices[0].logprobs["tokens"] == ["Hello", " world"] * 200
    assert len(chunks) <= 4
    assert account.written_tokens == 400


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves(core: EngineCore, stream: bool) -> None:
    """It is cancelled, and its sequence with it."""
    run = Run(core, scripted("a", [905] * 100_000, max_tokens=100_000), stream=stream)
    task = asyncio.create_task(run())
    if stream:
        await run.client.answered.wait()
    run.client.left.set()
    account = await task
    assert account.end_state == "client_cancelled"
    assert core.live_sequences == 0
    assert core.stats().kv_blocks_used == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_task_that_is_cancelled(core: EngineCore, stream: bool) -> None:
    """The server's own cancellation leaves nothing either."""
    run = Run(core, scripted("a", [905] * 100_000, max_tokens=100_000), stream=stream)
    task = asyncio.create_task(run())
    await turns_until(lambda: core.live_sequences > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.account.end_state == "client_cancelled"
    assert core.live_sequences == 0


async def test_a_fault_that_nobody_foresaw_ends_the_stream(core: EngineCore) -> None:
    """A bug after the headers is raised for the log, and the client still gets an error event and a clean end."""
    run = Run(core, scripted("a", [905] * 50), stream=True, buggy=True)
    with pytest.raises(ZeroDivisionError):
        await run()
    *_, last = frames_of(run.client.body)
    told = parsed(last)["error"]
    assert told["code"] == "internal_error"
    assert "bug" not in told["message"]
    assert run.client.was_ended
    assert run.account.end_state == "upstream_error"
    assert core.live_sequences == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_is_raised_before_anything_is_sent(core: EngineCore, stream: bool) -> None:
    """What can have a status gets one: a draining server's refusal, and a failure before the first token."""
    run = Run(core, scripted("a", HELLO), stream=stream)
    run.admission.draining = True
    with pytest.raises(EngineUnavailableError):
        await run()
    assert (run.client.sent, run.account.end_state) == ([], "rejected")
    async with running_core(vocabulary("smollm2"), faults={"fail_after_tokens": 1}) as faulty:
        run = Run(faulty, scripted("a", HELLO), stream=stream)
        with pytest.raises(GenerationFailedError):
            await run()
    assert (run.client.sent, run.account.end_state) == ([], "upstream_error")


class LostConnection(ClientConnection):
    """A connection that went while the last words were on their way."""

    lost = True


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_nobody_was_there_for(core: EngineCore, stream: bool) -> None:
    """Generated to the end, accepted by `send`, yet to a lost connection: cancelled, and nothing was written."""
    run = Run(core, scripted("r", HELLO), stream=stream)
    scope = {"type": "http", "extensions": {CONNECTION: LostConnection()}}
    await run.answer(scope, run.client.receive, run.client.send)
    (account,) = run.closed
    assert account.end_state is EndState.CLIENT_CANCELLED
    assert account.generated_tokens == len(HELLO)
    assert (account.written_tokens, account.written_bytes) == (0, 0)
