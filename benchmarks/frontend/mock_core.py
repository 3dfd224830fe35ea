"""An engine core without an engine: it takes vLLM's requests and sends, each step, one token of each, from a list.

It speaks vLLM's protocol over vLLM's sockets, so a front end can't tell. Never a model, never a limit on what runs at
once. Two ways to keep time (`Board.interval_us`): a step each so many microseconds, as an engine does; or the next step
as soon as all tokens of the last one arrived at the client, the most that a front end can bear without merging tokens.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from vllm.v1.engine import EngineCoreRequest, EngineCoreRequestType
from vllm.v1.serial_utils import MsgpackDecoder

from benchmarks.frontend.board import Board
from benchmarks.frontend.mock_sockets import ENGINE_INDEX, MockSockets
from benchmarks.frontend.mock_wire import MockRequest, answer_message, encoded_tokens, step_message
from engine.backends.vllm.engine_process import TellingAsyncScheduler, TellingScheduler, end_with_server

POLL_SECONDS = 50e-6
"""How often the client's count is looked at."""
PATIENCE_SECONDS = 5.0
"""How long a token may be under way before it is given up; nothing gets lost in a run that is any good."""
SPIN_SECONDS = 0.0005
"""The end of an interval is slept in one piece, not waited for in the sockets, whose clock has milliseconds."""
ANSWERS: dict[str, Any] = {
    "get_supported_tasks": ["generate"],
    "get_kv_cache_group_metadata": [],
    "get_weight_version": "default",
    "is_scheduler_paused": False,
    "is_sleeping": False,
    "list_loras": [],
    "reset_prefix_cache": True,
}
"""What front ends ask their engine; anything else is answered with nothing."""


@dataclass(frozen=True, slots=True)
class MockSettings:
    """What a mock core is told when it starts."""

    board: Path
    token_ids: Path
    """A JSON list."""
    cpu: int
    """The core that it keeps to."""


class MockCore:
    """The requests of all front ends, and the clock."""

    def __init__(self, sockets: MockSockets, settings: MockSettings, *, names_the_gone: bool) -> None:
        """`names_the_gone`: its steps name the requests that left, as a scheduler with that switch on does."""
        self._sockets = sockets
        self._board = Board(settings.board)
        self._said = [encoded_tokens(id_) for id_ in json.loads(settings.token_ids.read_text())]
        self._names_the_gone = names_the_gone
        self._running: dict[str, MockRequest] = {}
        self._gone: defaultdict[int, set[str]] = defaultdict(set)
        self._request_decoder = MsgpackDecoder(EngineCoreRequest)
        self._decoder = MsgpackDecoder()
        self._places = random.Random(1)
        self._given_up = 0
        """Tokens that will never be delivered: their clients are gone."""
        self._next_at = 0.0

    def run(self) -> None:
        """Until the process is told to end."""
        while True:
            if not self._running and not self._gone:
                self._take(wait_ms=None)
                self._next_at = time.perf_counter()
            self._wait()
            self._take(wait_ms=0)
            self._step()

    def _take(self, wait_ms: int | None) -> None:
        for kind, body in self._sockets.messages(wait_ms):
            if kind == EngineCoreRequestType.ADD.value:
                self._add(self._request_decoder.decode(body))
            elif kind == EngineCoreRequestType.ABORT.value:
                for request_id in self._decoder.decode(body):
                    self._abort(request_id)
            elif kind == EngineCoreRequestType.UTILITY.value:
                client, call_id, method, _ = self._decoder.decode(body)
                self._sockets.send(client, answer_message(call_id, ANSWERS.get(method), ENGINE_INDEX))

    def _add(self, request: Any) -> None:
        place = self._places.randrange(len(self._said))
        prompt_tokens, left = len(request.prompt_token_ids or ()), request.sampling_params.max_tokens
        self._running[request.request_id] = MockRequest(
            request.request_id, prompt_tokens, left, request.client_index, time.monotonic(), place
        )

    def _abort(self, request_id: str) -> None:
        request = self._running.pop(request_id, None)
        if request is not None and self._names_the_gone:
            self._gone[request.client].add(request_id)

    def _wait(self) -> None:
        interval = self._board.interval_us / 1e6
        if interval:
            self._wait_for_the_clock(interval)
        elif self._running:
            self._wait_for_the_client()

    def _wait_for_the_clock(self, interval: float) -> None:
        """A step that comes late moves those after it: no burst makes up for it."""
        while (left := self._next_at - time.perf_counter()) > SPIN_SECONDS:
            self._take(wait_ms=int((left - SPIN_SECONDS) * 1000))
        if left > 0:
            time.sleep(left)
        elif left < -SPIN_SECONDS:
            self._board.late += 1
        self._next_at = max(self._next_at, time.perf_counter() - SPIN_SECONDS) + interval

    def _wait_for_the_client(self) -> None:
        board, given_up_at = self._board, time.perf_counter() + PATIENCE_SECONDS
        while (missing := board.tokens - board.delivered - self._given_up) > 0:
            if time.perf_counter() > given_up_at:
                board.forgiven += missing
                self._given_up += missing
            time.sleep(POLL_SECONDS)

    def _step(self) -> None:
        now = time.monotonic()
        said, outputs = self._said, defaultdict[int, list[bytes]](list)
        for request in self._running.values():
            outputs[request.client].append(request.output(said[request.position], now))
            request.position = (request.position + 1) % len(said)
        self._board.tokens += len(self._running)
        self._board.steps += 1
        self._end_finished()
        gone, self._gone = self._gone, defaultdict(set)
        for client in outputs.keys() | gone.keys():
            message = step_message(outputs[client], len(self._running), gone[client], ENGINE_INDEX)
            self._sockets.send(client, message)

    def _end_finished(self) -> None:
        for request in [request for request in self._running.values() if request.tokens_left <= 0]:
            del self._running[request.request_id]
            if self._names_the_gone:
                self._gone[request.client].add(request.request_id)


def run_mock_core(settings: MockSettings, **engine: Any) -> None:
    """In the place of vLLM's `EngineCoreProc.run_engine_core`, with its arguments: the whole life of the process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    end_with_server()
    os.sched_setaffinity(0, {settings.cpu})
    config = engine["vllm_config"]
    context = zmq.Context()
    try:
        sockets = MockSockets(context, engine["handshake_address"], config)
        MockCore(sockets, settings, names_the_gone=names_the_gone(config)).run()
    finally:
        context.destroy(linger=0)


def names_the_gone(config: Any) -> bool:
    """Whether the engine that this stands for says which requests left it: tailrace's does, vLLM's own does not."""
    return issubclass(config.scheduler_config.get_scheduler_cls(), (TellingScheduler, TellingAsyncScheduler))
