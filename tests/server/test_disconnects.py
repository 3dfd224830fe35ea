"""A client that goes away: its sequences end within an engine step, their blocks are free, and its account says so.

Whenever it goes: queued, in prefill, decoding, in a stream or waiting for a whole answer.
"""

from __future__ import annotations

import http.client
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer, poll_until, simulated
from tests.server.open_request import OpenRequest
from tests.server.replies import CHAT, COMPLETIONS, DONE, parsed, scripted

LONG: dict[str, Any] = {"prompt": [905], "ignore_eos": True, "max_tokens": 4_000, "stream": True}
PREFILL: dict[str, Any] = LONG | {"prompt": [905] * 8_000, "max_tokens": 100}
"""125 steps of the narrow server's token budget."""


@pytest.fixture(scope="module")
def narrow(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One sequence at a time, two may wait; a long prompt takes many steps."""
    settings = (
        "engine.max_num_seqs=1",
        "engine.step_interval_ms=5",
        "engine.max_num_batched_tokens=64",
        "server.max_queued_requests=2",
        "server.keepalive_seconds=0.05",
    )
    flags = simulated(demo_model, *settings)
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("narrow")) as server:
        yield server


def gauge(server: RunningServer, name: str, value: float) -> None:
    """Waits until the engine says so."""
    server.wait_for({f"tailrace_{name}": value}, 2)


def new_accounts(server: RunningServer, path: str = COMPLETIONS) -> Callable[[], list[dict[str, Any]]]:
    """The log's lines of requests from now on."""
    before = len(server.log_records(event="request", endpoint=path))
    return lambda: server.log_records(event="request", endpoint=path)[before:]


def the_one(accounts: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    """The line that comes, and no second one."""
    poll_until(lambda: bool(accounts()), 2, lambda: "no line in the log")
    (record,) = accounts()
    return record


@pytest.mark.parametrize(
    "body",
    [
        LONG,
        LONG | {"n": 5, "logprobs": 1},
        LONG | {"stop": [" world never comes"]},
        scripted(COMPLETIONS, [187, 249, 230] * 1_000) | {"stream": True},
    ],
    ids=["plain", "five choices", "held stop prefix", "held bytes"],
)
def test_after_three_events(echo_server: RunningServer, body: dict[str, Any]) -> None:
    """A stream closed midway: idle within a second, one abort a choice, and no token counted as written twice."""
    echo_server.wait_idle()
    accounts = new_accounts(echo_server)
    aborted = 'tailrace_sequences_aborted_total{reason="disconnect"}'
    before = echo_server.metrics().get(aborted, 0)
    with OpenRequest(echo_server.url, COMPLETIONS, body) as request:
        assert len(request.next_events(3)) == 3
    echo_server.wait_idle(1)
    record = the_one(accounts)
    assert record["end_state"] == "client_cancelled"
    assert 0 < record["generated_tokens"] < 4_000
    assert record["written_tokens"] <= record["generated_tokens"]
    assert record["finish_reasons"] == []
    assert echo_server.metrics()[aborted] - before == body.get("n", 1)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_while_waiting_for_a_whole_answer(echo_server: RunningServer, path: str) -> None:
    """A whole answer's client is watched as a stream's is."""
    echo_server.wait_idle()
    accounts = new_accounts(echo_server, path)
    with OpenRequest(echo_server.url, path, scripted(path, [905] * 4_000)):
        gauge(echo_server, "sequences_running", 1)
    echo_server.wait_idle(1)
    record = the_one(accounts)
    assert (record["end_state"], record["written_tokens"]) == ("client_cancelled", 0)


@pytest.mark.parametrize("events", [0, 1, 5])
def test_after_it_stopped_sending(echo_server: RunningServer, events: int) -> None:
    """A client that closes its sending half, as netcat does, and reads on gets its stream to the end."""
    echo_server.wait_idle()
    accounts = new_accounts(echo_server)
    with OpenRequest(echo_server.url, COMPLETIONS, LONG | {"max_tokens": 200}) as request:
        assert events == 0 or request.next_events(events)
        request.send_no_more()
        assert request.all_events()[-1] == DONE
    record = the_one(accounts)
    assert record["end_state"] == "completed"
    assert record["delivered_tokens"] == record["completion_tokens"] == 200


def test_a_whole_answer_after_it_stopped_sending(echo_server: RunningServer) -> None:
    """Nothing can be written before the answer is there, so that no one can tell: taken for gone, cut, accounted."""
    echo_server.wait_idle()
    accounts = new_accounts(echo_server)
    with OpenRequest(echo_server.url, COMPLETIONS, LONG | {"stream": False}) as request:
        gauge(echo_server, "sequences_running", 1)
        request.send_no_more()
        echo_server.wait_idle(2)
    assert the_one(accounts)["end_state"] == "client_cancelled"


def test_after_the_last_token(echo_server: RunningServer) -> None:
    """An answer that was all sent is complete, however soon its client goes."""
    accounts = new_accounts(echo_server)
    with OpenRequest(echo_server.url, COMPLETIONS, scripted(COMPLETIONS, [905]) | {"stream": True}) as request:
        assert request.all_events()[-1] == DONE
    assert the_one(accounts)["end_state"] == "completed"


def test_before_the_body_was_sent(echo_server: RunningServer) -> None:
    """A request that was never whole is a client's departure, not an error."""
    accounts = new_accounts(echo_server)
    with OpenRequest(echo_server.url, COMPLETIONS, {}) as request:
        request.connection.close()
        request.connection.connect()
        request.connection.putrequest("POST", COMPLETIONS)
        request.connection.putheader("content-length", "100")
        request.connection.endheaders(b'{"prompt": [')
        gauge(echo_server, "streams_open", 1)
    poll_until(lambda: any(record["end_state"] == "client_cancelled" for record in accounts()), 2, lambda: "no line")
    echo_server.wait_idle(1)


@pytest.mark.parametrize("stream", [True, False])
def test_while_queued(narrow: RunningServer, stream: bool) -> None:
    """A queued request leaves the queue and never runs; the one that runs is not disturbed."""
    with OpenRequest(narrow.url, COMPLETIONS, LONG | {"max_tokens": 100}) as running:
        assert running.next_events(1)
        accounts = new_accounts(narrow)
        with OpenRequest(narrow.url, COMPLETIONS, LONG | {"stream": stream}):
            gauge(narrow, "sequences_waiting", 1)
        gauge(narrow, "sequences_waiting", 0)
        record = the_one(accounts)
        assert (record["end_state"], record["generated_tokens"]) == ("client_cancelled", 0)
        assert record["time_to_first_token_seconds"] is None
        assert running.all_events()[-1] == DONE
    narrow.wait_idle(1)


def test_in_prefill(narrow: RunningServer) -> None:
    """Its prompt is not processed to the end for nobody: it never decodes."""
    narrow.wait_idle()
    generated = narrow.metrics()["tailrace_tokens_generated_total"]
    accounts = new_accounts(narrow)
    with OpenRequest(narrow.url, COMPLETIONS, PREFILL):
        gauge(narrow, "sequences_running", 1)
    narrow.wait_idle(0.5)  # the prefill alone would take 0.6 s
    assert the_one(accounts)["end_state"] == "client_cancelled"
    assert narrow.metrics()["tailrace_tokens_generated_total"] == generated


def test_a_queued_stream_says_that_it_is_alive(narrow: RunningServer) -> None:
    """Headers and comments come while the request waits for its turn."""
    with OpenRequest(narrow.url, COMPLETIONS, LONG) as first, OpenRequest(narrow.url, CHAT, chat_of_one()) as second:
        blocks = second.blocks()
        early = [next(blocks) for _ in range(3)]
        assert early[0].startswith(b"data: ")  # the role
        assert early[1].startswith(b":")
        first.close()
        assert list(blocks)[-1] == DONE
    narrow.wait_idle(1)


def chat_of_one() -> dict[str, Any]:
    return scripted(CHAT, [905]) | {"stream": True}


def test_over_the_queues_bound(narrow: RunningServer) -> None:
    """One request more than may wait is told at once to come back, streamed or not; those in the queue are served."""
    narrow.wait_idle()
    with ExitStack() as stack:
        running = stack.enter_context(OpenRequest(narrow.url, COMPLETIONS, LONG))
        assert running.next_events(1)
        bodies = [LONG | {"max_tokens": 3}, {"prompt": [905]}]
        queued = [stack.enter_context(OpenRequest(narrow.url, COMPLETIONS, body)) for body in bodies]
        gauge(narrow, "sequences_waiting", 2)
        for stream in (True, False):
            refused = narrow.post(COMPLETIONS, LONG | {"stream": stream})
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
        running.close()
        assert queued[0].all_events()[-1] == DONE
        assert queued[1].response.status == 200
        queued[1].response.read()
    narrow.wait_idle(1)


def drop(server: RunningServer, seed: int) -> None:
    """One client of the crowd: some request, read a little of, or all, or nothing."""
    draw = random.Random(seed)
    body = {"prompt": [905] * draw.randint(1, 50), "stream": draw.random() < 0.7, "n": draw.choice([1, 1, 3])}
    body |= {"max_tokens": draw.choice([1, 5, 500]), "ignore_eos": True}
    with OpenRequest(server.url, COMPLETIONS, body) as request:
        if body["stream"]:
            request.next_events(draw.choice([0, 0, 1, 3, 40]))


def test_two_hundred_at_random(echo_server: RunningServer) -> None:
    """Opened and dropped in any order, nothing is left a second later; the accounts add up to the engine's count."""
    echo_server.wait_idle()
    accounts = new_accounts(echo_server)
    before = echo_server.metrics()
    with ThreadPoolExecutor(16) as clients:
        list(clients.map(lambda seed: drop(echo_server, seed), range(200)))
    echo_server.wait_idle(1)
    after = echo_server.metrics()
    ended = sum(
        value - before.get(name, 0) for name, value in after.items() if name.startswith("tailrace_streams_total")
    )
    poll_until(lambda: len(accounts()) >= ended, 2, lambda: f"{len(accounts())} lines of {ended}")
    records = accounts()
    assert len({record["request_id"] for record in records}) == len(records) == ended
    assert {record["end_state"] for record in records} == {"client_cancelled", "completed"}
    zombies = after["tailrace_tokens_zombie_total"] - before["tailrace_tokens_zombie_total"]
    generated = after["tailrace_tokens_generated_total"] - before["tailrace_tokens_generated_total"]
    assert zombies <= 3 * len(records)  # at most one step's token of each choice
    assert sum(record["generated_tokens"] for record in records) == generated - zombies
    assert all(record["written_tokens"] <= record["generated_tokens"] for record in records)


def test_a_client_that_takes_nothing_is_cut(demo_model: Path, tmp_path: Path) -> None:
    """A full socket costs its own stream only.

    It is aborted after the time that a slow client has, and its connection closed; a neighbour that takes everything,
    in small bites, misses nothing.
    """
    flags = simulated(demo_model, "engine.step_interval_ms=1", "server.slow_client_timeout_seconds=0.3")
    flood = LONG | {"n": 60, "logprobs": 5, "max_tokens": 8_000}
    with RunningServer(*flags, log_folder=tmp_path) as server, ExitStack() as stack:
        frozen = stack.enter_context(OpenRequest(server.url, COMPLETIONS, flood, receive_buffer=4_096))
        assert frozen.response.status == 200
        neighbour = OpenRequest(server.url, COMPLETIONS, LONG | {"max_tokens": 300}, receive_buffer=4_096)
        stack.enter_context(neighbour)
        texts = [parsed(event)["choices"][0]["text"] for event in neighbour.all_events()[:-1]]
        assert "".join(texts) == " world" * 300
        server.wait_idle(10)
        (cut,) = server.log_records(event="request", request_id=frozen.request_id)
        assert cut["end_state"] == "timed_out"
        assert cut["written_tokens"] < cut["generated_tokens"]
        assert server.metrics()['tailrace_sequences_aborted_total{reason="deadline"}'] == 60
        ours = frozen.connection.sock.getsockname()
        poll_until(lambda: not connected_to(server, ours), 1, lambda: "the server still holds the connection")
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            frozen.response.read()  # what the kernel still holds, up to the cut
        assert faults(server) == []


def connected_to(server: RunningServer, client: tuple[str, int]) -> bool:
    """Whether the kernel has a connection of the server's to this client, with a process or without."""
    theirs = [f"{port:04X}" for port in (httpx.URL(server.url).port or 80, client[1])]
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return theirs in [[address.rpartition(":")[2] for address in line[1:3]] for line in lines]


def faults(server: RunningServer) -> list[dict[str, Any]]:
    """What a log should not have after anything that a client does."""
    return [record for record in server.log_records() if record["level"] == "error" or "exception" in record]
