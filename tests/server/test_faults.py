"""The engine fails, dies or hangs: every client hears of it, in time, and the process lives on.

Never a success terminal after an error, never a stream that just ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.running_server import RunningServer, poll_until, simulated
from tests.server.open_request import OpenRequest
from tests.server.replies import CHAT, COMPLETIONS, DONE, parsed, scripted

Start = Callable[..., AbstractContextManager[RunningServer]]
LONG = {"prompt": [905], "ignore_eos": True, "max_tokens": 4_000, "stream": True}


@pytest.fixture(scope="module")
def start(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts a simulated engine with these settings."""

    @contextmanager
    def started(*settings: str) -> Iterator[RunningServer]:
        flags = simulated(demo_model, "engine.step_interval_ms=5", *settings)
        with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("faulty")) as server:
            yield server

    return started


@pytest.fixture(scope="module")
def failing(start: Start) -> Iterator[RunningServer]:
    """Each sequence fails with its third token."""
    with start("engine.faults.fail_after_tokens=3") as server:
        yield server


def end_of_account(server: RunningServer, request_id: str) -> dict[str, object]:
    """The log's one line of a request."""
    wanted = {"event": "request", "request_id": request_id}
    poll_until(lambda: bool(server.log_records(**wanted)), 2, lambda: f"no line of {request_id}")
    (record,) = server.log_records(**wanted)
    return record


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_failure_after_the_first_token_is_an_event(failing: RunningServer, path: str) -> None:
    """What was said stays said; then an error in OpenAI's shape; no finish reason, no `[DONE]`."""
    with OpenRequest(failing.url, path, scripted(path, [905] * 9) | {"stream": True}) as request:
        assert request.response.status == 200
        *events, last = map(parsed, request.all_events())
        record = end_of_account(failing, request.request_id)
    choices = [choice for event in events for choice in event["choices"]]
    assert all(choice["finish_reason"] is None for choice in choices)
    texts = [choice["delta"].get("content") if path == CHAT else choice["text"] for choice in choices]
    assert "".join(text or "" for text in texts) == " world" * 3
    assert set(last) == {"error"}
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert last["error"]["code"] == "generation_failed"
    assert (record["end_state"], record["generated_tokens"]) == ("upstream_error", 3)


@pytest.mark.parametrize("stream", [True, False])
def test_a_failure_before_the_first_token_is_a_status(failing: RunningServer, stream: bool) -> None:
    """While nothing was sent, a failed stream and a failed answer are the same 500."""
    body = scripted(CHAT, [905] * 3, steps=[3]) | {"stream": stream}
    response = failing.post(CHAT, body)
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["code"] == "generation_failed"
    assert end_of_account(failing, response.headers["x-request-id"])["end_state"] == "upstream_error"


def test_a_failure_of_one_choice_ends_its_request(failing: RunningServer) -> None:
    """The other choices of the request do not go on for nobody."""
    body = {"prompt": [[905], [905] * 4, [905, 905]], "stream": True, "max_tokens": 50}
    with OpenRequest(failing.url, COMPLETIONS, body) as request:
        *_, last = request.all_events()
    assert "error" in parsed(last)
    failing.wait_idle()


def test_a_failed_sequence_harms_no_other(failing: RunningServer) -> None:
    """The engine is still ready, and a request that ends in time gets its answer."""
    assert failing.post(COMPLETIONS, {"prompt": [905, 905]}).json()["choices"][0]["text"] == " world world"
    assert httpx.get(f"{failing.url}/ready").status_code == 200
    failing.wait_idle()


@pytest.mark.parametrize("fault", ["crash_after_steps", "stall_after_steps"])
def test_the_engine_dies_and_comes_back(start: Start, fault: str) -> None:
    """All streams end with an error event, the whole answer is a 5xx; not ready, 503, alive; then all is as before."""
    settings = ("engine.restart_backoff_seconds=3", "engine.stall_timeout_seconds=0.5")
    with start(f"engine.faults.{fault}=25", *settings) as server, ExitStack() as stack:
        streams = [stack.enter_context(OpenRequest(server.url, COMPLETIONS, LONG)) for _ in range(3)]
        whole = stack.enter_context(OpenRequest(server.url, COMPLETIONS, LONG | {"stream": False}))
        for stream in streams:
            *events, last = map(parsed, stream.all_events())
            assert events
            assert last["error"]["code"] == "generation_failed"
            assert end_of_account(server, stream.request_id)["end_state"] == "upstream_error"
        assert whole.response.status == 500
        assert_down(server, "crash" if fault == "crash_after_steps" else "no step")
        poll_until(lambda: httpx.get(f"{server.url}/ready").status_code == 200, 10, lambda: "never ready again")
        assert server.metrics()["tailrace_engine_up"] == 1
        answer = server.post(COMPLETIONS, {"prompt": [905] * 60})
        assert answer.json()["choices"][0]["text"] == " world" * 16
        server.wait_idle()
        assert server.stop() == 0


def assert_down(server: RunningServer, reason: str) -> None:
    """Alive, not ready, and saying so to whoever asks."""
    assert server.process.poll() is None
    assert httpx.get(f"{server.url}/health").status_code == 200
    ready = httpx.get(f"{server.url}/ready")
    assert ready.status_code == 503
    assert reason in ready.json()["reason"]
    for stream in (True, False):
        refused = server.post(COMPLETIONS, LONG | {"stream": stream})
        assert refused.status_code == 503
        assert 0 < int(refused.headers["retry-after"]) <= 3
        assert refused.json()["error"]["code"] == "engine_unavailable"
    assert server.metrics()["tailrace_engine_up"] == 0
    assert server.metrics()["tailrace_streams_open"] == 0


def test_the_engine_hangs(start: Start) -> None:
    """A stream says that it is alive while its client stays; one that was left ends with the hung engine at last."""
    hang = ("engine.faults.stall_after_steps=5", "engine.stall_timeout_seconds=3")
    with start(*hang, "server.keepalive_seconds=0.02") as server:
        with OpenRequest(server.url, COMPLETIONS, LONG) as request:
            blocks = request.blocks()
            silent = [block for block in (next(blocks) for _ in range(20)) if block.startswith(b":")]
            assert len(silent) >= 10
            assert server.metrics()["tailrace_sequences_running"] == 1
        server.wait_for({"tailrace_sequences_unsettled": 1}, 2)
        server.wait_idle(6)
        assert server.metrics()["tailrace_sequences_unsettled"] == 0
        assert end_of_account(server, request.request_id)["end_state"] == "client_cancelled"
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_keepalives_harm_no_stream(start: Start) -> None:
    """Comments in every silence, before the first token too, and the text is whole."""
    settings = ("engine.step_interval_ms=40", "server.keepalive_seconds=0.01")
    with (
        start(*settings) as server,
        OpenRequest(server.url, CHAT, scripted(CHAT, [905] * 3) | {"stream": True}) as chat,
    ):
        blocks = list(chat.blocks())
    comments = [block for block in blocks if block.startswith(b":")]
    assert len(comments) >= 3
    *events, last = (block for block in blocks if not block.startswith(b":"))
    assert last == DONE
    deltas = [choice["delta"] for event in events for choice in parsed(event)["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == " world" * 3
