"""Reported faults of cancellation: whenever and however a client goes, its request ends at once and is accounted for.

The engine is the simulated one; the client is a socket on the server's port, or a hand-made one around the application.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer, poll_until, simulated
from tests.server.open_request import OpenRequest
from tests.server.replies import CHAT, COMPLETIONS, DONE, chunks_of, folded
from tests.server.reported_cases import ABORTED, KEY, Since, body_of
from tests.server.reported_rows import conversation_of

PAGE = "https://chat.example.org"
HEADERS = {"authorization": f"Bearer {KEY}", "origin": PAGE}
HALF_A_CHARACTER = [187, 249]
"""Two bytes of four."""
SILENT = 3
"""A special token, which is skipped: the engine goes on and nothing can be said."""
WORDS = [905] * 3
RESIDENT = "process_resident_memory_bytes"


@pytest.fixture(scope="module")
def guarded(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Every middleware that there is: keys and CORS, within the one that names requests."""
    flags = simulated(demo_model, "engine.step_interval_ms=2", f"server.api_keys={KEY}", f"server.cors_origins={PAGE}")
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("guarded")) as server:
        yield server


@pytest.fixture(scope="module")
def narrow(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One sequence at a time; a prompt of half the context takes 64 steps, which is more than a second."""
    flags = simulated(
        demo_model, "engine.max_num_seqs=1", "engine.step_interval_ms=20", "engine.max_num_batched_tokens=64"
    )
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("narrow")) as server:
        yield server


def all_stopped(server: RunningServer, since: Since) -> None:
    """Within two seconds nothing runs, no block is held, and the engine generates for nobody any more."""
    server.wait_idle(2)
    generated = since.growth("tailrace_tokens_generated_total")
    assert server.post(COMPLETIONS, {"prompt": WORDS}, HEADERS).json()["usage"]["completion_tokens"] == len(WORDS)
    assert since.growth("tailrace_tokens_generated_total") == generated + len(WORDS)
    assert server.metrics()["tailrace_orphaned_requests"] == 0


def test_can_01_after_three_events(echo_server: RunningServer) -> None:
    """A stream closed midway stops: one abort, and no token later."""
    since = Since(echo_server)
    with OpenRequest(echo_server.url, CHAT, body_of("CAN-01", echo_server)) as request:
        assert len(request.next_events(3)) == 3
    all_stopped(echo_server, since)
    assert since.growth(ABORTED) == 1
    assert since.accounts(2)[0]["end_state"] == "client_cancelled"


@pytest.mark.parametrize(
    ("token_ids", "stop", "events"),
    [
        (HALF_A_CHARACTER, [], 0),
        (WORDS + HALF_A_CHARACTER, [], 4),
        (WORDS + [104] * 20, ["x" * 21], 4),
    ],
    ids=["before the first byte", "during a held UTF-8 tail", "during a held stop prefix"],
)
def test_can_01_while_nothing_can_be_said(
    echo_server: RunningServer, token_ids: list[int], stop: list[str], events: int
) -> None:
    """The loss is noticed without a write; what was held back is generated and not delivered."""
    since = Since(echo_server)
    script = {"token_ids": token_ids + [SILENT] * 3_000, "then": "eos"}
    with OpenRequest(echo_server.url, CHAT, body_of("CAN-01", echo_server, simulate=script, stop=stop)) as request:
        assert len(request.next_events(events) if events else []) == events
        poll_until(lambda: since.growth("tailrace_tokens_generated_total") > 30, 2, lambda: "never ran")
        assert select.select([request.connection.sock], [], [], 0)[0] == []
    all_stopped(echo_server, since)
    assert since.growth(ABORTED) == 1
    account = since.accounts(2)[0]
    assert account["end_state"] == "client_cancelled"
    assert account["delivered_tokens"] == account["written_tokens"] == max(events - 1, 0)
    assert account["generated_tokens"] > 30


def test_can_01_after_the_last_token(echo_server: RunningServer) -> None:
    """The engine has finished, the last words and `[DONE]` wait for the socket: cancelled, with nothing to abort."""
    since = Since(echo_server)
    body = body_of("CAN-01", echo_server, n=16, max_tokens=400, logprobs=True, top_logprobs=5)
    with OpenRequest(echo_server.url, CHAT, body, receive_buffer=4_096) as request:
        assert request.response.status == 200
        poll_until(lambda: since.growth("tailrace_tokens_generated_total") == 16 * 400, 10, lambda: "never ended")
        echo_server.wait_for({"tailrace_sequences_running": 0, "tailrace_streams_open": 1}, 2)
    all_stopped(echo_server, since)
    assert since.growth(ABORTED) == 0
    account = since.accounts(2)[0]
    assert account["end_state"] == "client_cancelled"
    assert account["delivered_tokens"] < account["generated_tokens"] == 16 * 400


def test_can_01_a_hundred_at_once(echo_server: RunningServer) -> None:
    """A hundred such clients leave nothing either, and a new request starts at once."""
    since = Since(echo_server)
    body = body_of("CAN-01", echo_server)

    def leave(_: int) -> int:
        with OpenRequest(echo_server.url, CHAT, body) as request:
            return len(request.next_events(3))

    with ThreadPoolExecutor(100) as clients:
        assert list(clients.map(leave, range(100))) == [3] * 100
    with OpenRequest(echo_server.url, CHAT, body) as request:
        request.connection.sock.settimeout(1)
        assert len(request.next_events(3)) == 3
    all_stopped(echo_server, since)
    assert since.growth(ABORTED) == 101
    assert {account["end_state"] for account in since.accounts(102)[:101]} == {"client_cancelled"}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_can_03_a_whole_answers_client(guarded: RunningServer, path: str) -> None:
    """Behind every middleware that there is, a client that waits for a whole answer is noticed when it goes."""
    before = guarded.metrics()[ABORTED]
    body = body_of("CAN-03", guarded, prompt=WORDS)
    with OpenRequest(guarded.url, path, body, headers=HEADERS):
        guarded.wait_for({"tailrace_sequences_running": 1}, 2)
    guarded.wait_idle(2)
    assert guarded.metrics()[ABORTED] == before + 1
    assert guarded.log_records(event="request", endpoint=path)[-1]["end_state"] == "client_cancelled"


def test_can_03_a_streams_client(guarded: RunningServer) -> None:
    """And so is a stream's."""
    before = guarded.metrics()[ABORTED]
    body = body_of("CAN-03", guarded, stream=True)
    with OpenRequest(guarded.url, CHAT, body, headers=HEADERS) as request:
        assert request.response.headers["access-control-allow-origin"] == PAGE
        assert len(request.next_events(3)) == 3
    guarded.wait_idle(2)
    assert guarded.metrics()[ABORTED] == before + 1


def half_the_context(server: RunningServer) -> list[dict[str, str]]:
    with httpx.Client(base_url=server.url) as http:
        return conversation_of(http, 4_096)


def test_can_04_during_prefill(narrow: RunningServer) -> None:
    """A prompt is not processed to its end for nobody, and its request never decodes."""
    since = Since(narrow)
    body = body_of("CAN-04", narrow, messages=half_the_context(narrow), max_tokens=4)
    steps = since.growth("tailrace_engine_steps_total")
    with OpenRequest(narrow.url, CHAT, body):
        narrow.wait_for({"tailrace_sequences_running": 1}, 2)
    narrow.wait_idle(1)
    assert since.growth("tailrace_tokens_generated_total") == 0
    assert (since.growth("tailrace_engine_steps_total") - steps) * 64 < 4_096
    (account,) = since.accounts()
    assert (account["end_state"], account["prompt_tokens"]) == ("client_cancelled", 4_096)


def test_can_04_while_queued(narrow: RunningServer) -> None:
    """A client that leaves the queue is never scheduled, and no error is logged."""
    since = Since(narrow)
    with ExitStack() as stack:
        body = body_of("CAN-01", narrow, max_tokens=30)
        running = stack.enter_context(OpenRequest(narrow.url, CHAT, body))
        assert running.next_events(1)
        with OpenRequest(narrow.url, CHAT, body):
            narrow.wait_for({"tailrace_sequences_waiting": 1}, 2)
        narrow.wait_for({"tailrace_sequences_waiting": 0}, 2)
        assert running.all_events()[-1] == DONE
    narrow.wait_idle(2)
    assert since.growth("tailrace_sequences_scheduled_total") == 1
    left, stayed = since.accounts(2)
    assert (left["end_state"], left["generated_tokens"]) == ("client_cancelled", 0)
    assert stayed["end_state"] == "completed"
    assert narrow.log_records(level="error") == []


SLOW_SECONDS = 0.5
BITE_BYTES, BITE_PAUSE_SECONDS = 4_096, 0.03
"""A slow reader's pace: about its whole receive buffer, a few times within the timeout."""


def read_slowly(request: OpenRequest, look: Callable[[], object]) -> bytes:
    """The whole answer, bite by bite."""
    pause, body = threading.Event(), bytearray()
    while bite := request.response.read1(BITE_BYTES):
        body += bite
        look()
        pause.wait(BITE_PAUSE_SECONDS)
    return bytes(body)


def test_can_07_a_reader_that_takes_nothing(demo_model: Path, tmp_path: Path) -> None:
    """It is cut within its time with bounded memory; who takes a little now and then gets every byte."""
    flags = simulated(
        demo_model,
        "engine.step_interval_ms=2",
        "engine.tokens_per_step=50",
        f"server.slow_client_timeout_seconds={SLOW_SECONDS}",
    )
    with RunningServer(*flags, log_folder=tmp_path) as server, ExitStack() as stack:
        since = Since(server)
        text = {"prompt": WORDS, "ignore_eos": True, "stream": True, "logprobs": 5}
        bodies = text | {"n": 16, "max_tokens": 8_000}, text | {"max_tokens": 6_000}
        frozen, moving = (
            stack.enter_context(OpenRequest(server.url, COMPLETIONS, body, receive_buffer=4_096)) for body in bodies
        )
        assert frozen.response.status == 200
        grown: list[float] = []
        reply = folded(chunks_of(read_slowly(moving, lambda: grown.append(since.growth(RESIDENT)))))
        assert reply.text == " world" * 6_000
        server.wait_idle()
        accounts = {account["request_id"]: account for account in since.accounts(2)}
        cut, whole = accounts[frozen.request_id], accounts[moving.request_id]
        assert (cut["end_state"], cut["phase"]) == ("timed_out", "slow_client")
        assert cut["delivered_tokens"] < cut["generated_tokens"]
        assert whole["delivered_tokens"] == whole["generated_tokens"] == 6_000
        assert whole["duration_seconds"] - whole["time_to_last_token_seconds"] > SLOW_SECONDS
        assert max(grown) < 64 * 1024 * 1024


@pytest.mark.parametrize("stream", [True, False])
def test_can_08_a_client_that_only_stops_sending(echo_server: RunningServer, stream: bool) -> None:
    """A stream is served to its end; a whole answer, of which no one can tell, ends clean and counts as cancelled.

    Never a request that runs without its connection.
    """
    since = Since(echo_server)
    body: dict[str, Any] = {"prompt": WORDS, "ignore_eos": True, "stream": stream, "max_tokens": 200}
    with OpenRequest(echo_server.url, COMPLETIONS, body | ({} if stream else {"max_tokens": 4_000})) as request:
        request.send_no_more()
        if stream:
            assert request.all_events()[-1] == DONE
        else:
            echo_server.wait_idle(2)
            assert read_to_end(request.connection.sock) == b""
    (account,) = since.accounts()
    assert account["end_state"] == ("completed" if stream else "client_cancelled")
    assert since.growth(ABORTED) in ((0,) if stream else (0, 1))  # 0: it had not come to the engine yet
    all_stopped(echo_server, since)


def read_to_end(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65_536), b""))
