"""Soft cancel: the generation ends within a step; the client that stayed gets its text, a finish, usage and the end.

And `/v1/usage/{id}`: the account of a request, open, ended or cut, under its response's id.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running_server import RunningServer, poll_until, simulated
from tests.server.open_request import OpenRequest
from tests.server.replies import CHAT, COMPLETIONS, DONE, MESSAGES, parsed

ENDLESS: dict[str, Any] = {"prompt": [905], "ignore_eos": True, "max_tokens": 8_000, "stream": True}
USAGE = {"stream_options": {"include_usage": True}}


def cancel(server: RunningServer, response_id: str) -> dict[str, Any]:
    answer = server.post(f"/v1/streams/{response_id}/cancel", b"")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def usage(server: RunningServer, response_id: str) -> dict[str, Any]:
    """The account, once it has ended."""
    path = f"/v1/usage/{response_id}"
    poll_until(lambda: server.get(path).json()["end_state"] is not None, 5, lambda: server.get(path).text)
    body: dict[str, Any] = server.get(path).json()
    return body


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_stream_ends_well(echo_server: RunningServer, path: str, choices: int) -> None:
    """Every choice gets a finish chunk, then usage and the success terminal follow; the engine holds nothing."""
    body = ENDLESS | USAGE | {"n": choices}
    if path == CHAT:
        body |= {"messages": MESSAGES}
        del body["prompt"]
    with OpenRequest(echo_server.url, path, body) as request:
        first = parsed(request.next_events(choices + 2)[-1])
        answer = cancel(echo_server, first["id"])
        assert (answer["cancelled"], answer["usage"]["end_state"]) == (True, None)
        *events, last_usage, last = request.all_events()
        assert last == DONE
        ends = [choice for event in events for choice in parsed(event)["choices"] if choice["finish_reason"]]
        assert sorted(choice["index"] for choice in ends) == list(range(choices))
        assert {choice["finish_reason"] for choice in ends} == {"abort"}
        told = parsed(last_usage)["usage"]["completion_tokens"]
    echo_server.wait_idle()
    record = usage(echo_server, first["id"])
    assert record["end_state"] == "client_cancelled"
    assert record["completion_tokens"] == record["delivered_tokens"] == told
    assert record["zombie_tokens"] == 0


def test_text_that_was_held_back_comes(echo_server: RunningServer) -> None:
    """The beginning of a stop string that never came is part of the answer."""
    script = {"simulate": {"token_ids": [104] * 5_000}, "stop": ["x" * 4_999 + "y"], "max_tokens": 8_000}
    with OpenRequest(echo_server.url, COMPLETIONS, ENDLESS | script | USAGE) as request:
        echo_server.wait_for({"tailrace_sequences_running": 1}, 5)
        (open_id,) = open_ids(echo_server)
        cancel(echo_server, open_id)
        events = request.all_events()
    *chunks, told, last = [event for event in events if event != DONE] + [DONE]
    text = "".join(choice["text"] for chunk in chunks for choice in parsed(chunk)["choices"])
    assert last == DONE
    assert len(text) == parsed(told)["usage"]["completion_tokens"] > 0


def test_a_whole_answer_ends_well(echo_server: RunningServer) -> None:
    """Its client gets what there was, as an answer."""
    with OpenRequest(echo_server.url, COMPLETIONS, ENDLESS | {"stream": False}) as request:
        echo_server.wait_for({"tailrace_sequences_running": 1}, 5)
        (open_id,) = open_ids(echo_server)
        assert cancel(echo_server, open_id)["cancelled"]
        answer = parsed(b"data: " + request.response.read())
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert answer["usage"]["completion_tokens"] > 0


def open_ids(server: RunningServer) -> list[str]:
    """The ids of the requests that are open now."""
    ids: list[str] = [entry["request_id"] for entry in server.get("/v1/streams").json()["data"]]
    return ids


def test_twice_and_too_late(echo_server: RunningServer) -> None:
    """Cancelling is idempotent: of an answer that has ended it says so, and changes nothing."""
    whole = echo_server.post(COMPLETIONS, {"prompt": [905], "max_tokens": 3}).json()
    before = usage(echo_server, whole["id"])
    answer = cancel(echo_server, whole["id"])
    assert (answer["cancelled"], answer["usage"]) == (False, before)
    assert before["end_state"] == "completed"


@pytest.mark.parametrize("response_id", ["cmpl-0123", "nonsense", "x" * 2_000])
def test_an_unknown_id(echo_server: RunningServer, response_id: str) -> None:
    """A 404 in the error shape, that repeats no more of the id than a line holds."""
    for answer in (
        echo_server.post(f"/v1/streams/{response_id}/cancel", b""),
        echo_server.get(f"/v1/usage/{response_id}"),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "response_not_found"
        assert len(answer.content) < 500


def test_the_usage_of_a_stream_that_was_cut(echo_server: RunningServer) -> None:
    """Also of it one can know what was generated and what came to the client; while it runs, how far it is."""
    with OpenRequest(echo_server.url, COMPLETIONS, ENDLESS) as request:
        first = parsed(request.next_events(3)[0])
        running = echo_server.get(f"/v1/usage/{first['id']}").json()
        assert (running["end_state"], running["phase"]) == (None, "between_tokens")
        assert running["generated_tokens"] >= 3
    record = usage(echo_server, first["id"])
    assert (record["end_state"], record["phase"]) == ("client_cancelled", "between_tokens")
    assert record["generated_tokens"] >= record["written_tokens"] >= record["delivered_tokens"] >= 3


@pytest.fixture(scope="module")
def keyed(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two keys."""
    flags = simulated(demo_model, "engine.step_interval_ms=2")
    folder = tmp_path_factory.mktemp("keyed")
    with RunningServer(*flags, "--set", "server.api_keys=alice,bob", log_folder=folder) as server:
        yield server


def test_another_key_is_told_nothing(keyed: RunningServer) -> None:
    """A request of one key can be neither seen nor cancelled by another: for that one it does not exist."""
    alice, bob = ({"authorization": f"Bearer {key}"} for key in ("alice", "bob"))
    with OpenRequest(keyed.url, COMPLETIONS, ENDLESS, headers=alice) as request:
        response_id = parsed(request.next_events(1)[0])["id"]
        for headers, status in ((bob, 404), ({}, 401), (alice, 200)):
            assert (request.request_id in keyed.get("/v1/streams", headers).text) == (headers is alice)
            assert keyed.get(f"/v1/usage/{response_id}", headers).status_code == status
            assert keyed.post(f"/v1/streams/{response_id}/cancel", b"", headers).status_code == status
        assert request.all_events()[-1] == DONE
    assert keyed.get(f"/v1/usage/{response_id}", bob).status_code == 404
    assert keyed.get(f"/v1/usage/{response_id}", alice).status_code == 200
