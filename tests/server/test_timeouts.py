"""Deadlines: each phase has its own, from the settings or the request, and who misses one is told and counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.running_server import RunningServer, poll_until, simulated
from tests.server.open_request import OpenRequest
from tests.server.replies import COMPLETIONS, DONE, parsed

ENDLESS: dict[str, Any] = {"prompt": [905], "ignore_eos": True, "max_tokens": 8_000, "stream": True}
LONG_PREFILL = ENDLESS | {"prompt": [905] * 8_000, "max_tokens": 100}


@pytest.fixture(scope="module")
def narrow(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One sequence at a time, and a prompt of 8,000 tokens takes more than a second."""
    settings = ("engine.max_num_seqs=1", "engine.step_interval_ms=10", "engine.max_num_batched_tokens=64")
    flags = simulated(demo_model, *settings)
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("narrow")) as server:
        yield server


def the_end_of(server: RunningServer, request_id: str) -> tuple[str, str]:
    """End state and phase."""
    path = f"/v1/usage/{request_id}"
    poll_until(lambda: server.get(path).json()["end_state"] is not None, 5, lambda: server.get(path).text)
    record = server.get(path).json()
    return record["end_state"], record["phase"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("phase", "body"), [("first_token", LONG_PREFILL), ("total", LONG_PREFILL)])
def test_before_the_first_token(narrow: RunningServer, phase: str, body: dict[str, Any], *, stream: bool) -> None:
    """Nothing was sent yet, so that a status says it: 504 with the deadline's name, soon after it passed."""
    began = time.monotonic()
    answer = narrow.post(COMPLETIONS, body | {"stream": stream, "timeouts": {phase: 0.2}})
    assert 0.2 <= time.monotonic() - began < 1
    assert answer.status_code == 504
    error = answer.json()["error"]
    assert error["code"] == "deadline_exceeded"
    assert f"'{phase}'" in error["message"]
    narrow.wait_idle()
    assert the_end_of(narrow, answer.headers["x-request-id"]) == ("timed_out", phase)


def test_in_the_queue(narrow: RunningServer) -> None:
    """One that waits behind another is not begun any more; the one before it goes on."""
    with OpenRequest(narrow.url, COMPLETIONS, ENDLESS) as running:
        assert running.next_events(1)
        answer = narrow.post(COMPLETIONS, ENDLESS | {"timeouts": {"queue": 0.2}})
        assert answer.status_code == 504
        assert the_end_of(narrow, answer.headers["x-request-id"]) == ("timed_out", "queue")
        assert narrow.metrics()["tailrace_sequences_waiting"] == 0
        assert running.next_events(1)


def test_in_the_middle_of_a_stream(narrow: RunningServer) -> None:
    """What was generated has come; then an error event, and no success terminal."""
    with OpenRequest(narrow.url, COMPLETIONS, ENDLESS | {"timeouts": {"total": 0.3}}) as request:
        *events, last = request.all_events()
        assert DONE not in [*events, last]
        assert parsed(last)["error"]["code"] == "deadline_exceeded"
        text = "".join(choice["text"] for event in events for choice in parsed(event)["choices"])
    assert the_end_of(narrow, request.request_id) == ("timed_out", "total")
    record = narrow.get(f"/v1/usage/{request.request_id}").json()
    assert record["delivered_tokens"] == record["completion_tokens"] == len(text.split()) > 5
    narrow.wait_idle()


def test_between_tokens(demo_model: Path, tmp_path: Path) -> None:
    """An engine that stalls: the setting ends the streams, whatever the client asked for; their accounts close."""
    settings = (
        "engine.step_interval_ms=5",
        "engine.faults.stall_after_steps=20",
        "engine.stall_timeout_seconds=3",
        "server.token_timeout_seconds=0.3",
    )
    with RunningServer(*simulated(demo_model, *settings), log_folder=tmp_path) as server:
        with ExitStack() as stack:
            bodies = [ENDLESS, ENDLESS | {"timeouts": {"between_tokens": 100}}, ENDLESS | {"n": 3}]
            requests = [stack.enter_context(OpenRequest(server.url, COMPLETIONS, body)) for body in bodies]
            for request in requests:
                assert parsed(request.all_events()[-1])["error"]["code"] == "deadline_exceeded"
        for request in requests:
            assert the_end_of(server, request.request_id) == ("timed_out", "between_tokens")
        counted = 'tailrace_streams_total{end_state="timed_out",endpoint="/v1/completions",phase="between_tokens"}'
        server.wait_for({counted: len(bodies)}, 10)


@pytest.mark.parametrize("timeouts", [{"queue": 0}, {"total": -1}, {"nonsense": 1}, {"first_token": "1"}, 5])
def test_a_timeout_that_is_none(narrow: RunningServer, timeouts: object) -> None:
    """A 400 that names the field."""
    answer = narrow.post(COMPLETIONS, ENDLESS | {"timeouts": timeouts})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("timeouts")
