"""Reported faults of usage and latency figures: every count is of tokens, whole and streamed alike, and also when cut.

The engine is the simulated one, so that what it generated is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer, poll_until, simulated
from tests.server.open_request import OpenRequest
from tests.server.replies import CHAT, COMPLETIONS, chunks, parsed, streamed, whole
from tests.server.reported_cases import ABORTED, CASES, Since, body_of
from tests.server.reported_rows import conversation_of

HALF_A_CHARACTER = [187, 249]
SILENT = 3
"""A special token, which is skipped."""
TTFT = "tailrace_time_to_first_token_seconds_count"
GAPS = "tailrace_inter_token_latency_seconds_count"


def cumulative(http: httpx.Client, path: str, body: dict[str, Any], total: int) -> None:
    """Usage never decreases within the stream, and its last is the final one and the whole answer's."""
    *others, last = chunks(http, path, body)
    counts = [chunk["usage"]["completion_tokens"] for chunk in others]
    assert counts == sorted(counts)
    assert counts[-1] == last["usage"]["completion_tokens"] == total
    plain = {name: value for name, value in body.items() if name != "stream_options"}
    assert whole(http, path, plain).usage == last["usage"]


def test_use_01_both_choices_are_summed(echo_server: RunningServer, http: httpx.Client) -> None:
    """Two choices with one script each count it twice; the end-of-sequence token of a script is not counted."""
    body = body_of("USE-01", echo_server)
    first, _ = CASES["USE-01"]["engine"]["emit_ids_per_choice"]
    cumulative(http, CHAT, body | {"simulate": {"token_ids": first, "then": "eos"}}, 2 * len(first))


def test_use_01_choices_that_differ(echo_server: RunningServer, http: httpx.Client) -> None:
    """Two prompts, whose echoes are the case's two scripts."""
    options = body_of("USE-01", echo_server)["stream_options"]
    scripts = CASES["USE-01"]["engine"]["emit_ids_per_choice"]
    cumulative(http, COMPLETIONS, {"prompt": scripts, "stream_options": options}, sum(map(len, scripts)))


def test_use_03_a_step_of_three_tokens(echo_server: RunningServer) -> None:
    """Steps of one, three and one token: one first token, four gaps."""
    since = Since(echo_server)
    script = {"token_ids": [905] * 5, "steps": [1, 3, 1], "then": "eos"}
    echo_server.events(CHAT, body_of("USE-03", echo_server, simulate=script))
    echo_server.wait_idle()
    assert (since.growth(TTFT), since.growth(GAPS)) == (1, 4)


@pytest.mark.parametrize(
    ("token_ids", "stop"),
    [([*HALF_A_CHARACTER, *[SILENT] * 150, 230, 131], []), ([104] * 150, ["x" * 149 + "y"])],
    ids=["half a character", "stop prefix"],
)
def test_use_03_held_text_is_not_a_late_token(
    echo_server: RunningServer, token_ids: list[int], stop: list[str]
) -> None:
    """The first token is timed when it was sampled, however much later its text came."""
    since = Since(echo_server)
    script = {"token_ids": token_ids, "then": "eos"}
    echo_server.events(CHAT, body_of("USE-03", echo_server, simulate=script, stop=stop))
    (account,) = since.accounts()
    assert account["time_to_first_token_seconds"] < account["time_to_last_token_seconds"] / 2
    assert since.growth(GAPS) == account["generated_tokens"] - 1


@pytest.fixture(scope="module")
def prefilling(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A prompt of 4,096 tokens takes 64 steps of 20 ms."""
    flags = simulated(demo_model, "engine.step_interval_ms=20", "engine.max_num_batched_tokens=64")
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("prefilling")) as server:
        yield server


def test_use_03_an_abort_in_prefill(prefilling: RunningServer) -> None:
    """It is an abort and no sample of a latency."""
    since = Since(prefilling)
    with httpx.Client(base_url=prefilling.url) as http:
        messages = conversation_of(http, 4_096)
    with OpenRequest(prefilling.url, CHAT, body_of("USE-03", prefilling, messages=messages)):
        prefilling.wait_for({"tailrace_sequences_running": 1}, 2)
    prefilling.wait_idle()
    since.accounts()
    assert since.growth(ABORTED) == 1
    latencies = (TTFT, GAPS, "vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count")
    assert [since.growth(name) for name in latencies] == [0] * 4


@pytest.mark.parametrize("events", [1, 5, 60])
def test_use_04_a_stream_that_was_cut(echo_server: RunningServer, events: int) -> None:
    """Its record is found by its id: what the client read was delivered, and nothing that was not generated."""
    since = Since(echo_server)
    with OpenRequest(echo_server.url, CHAT, body_of("USE-04", echo_server)) as request:
        read = [parsed(event) for event in request.next_events(events + 1)]
    echo_server.wait_idle()
    (account,) = since.accounts()
    record = echo_server.get(f"/v1/usage/{read[0]['id']}").json()
    assert record["end_state"] == account["end_state"] == "client_cancelled"
    assert events <= record["delivered_tokens"] <= record["written_tokens"] <= record["generated_tokens"] < 500
    assert record["generated_tokens"] == since.growth("tailrace_tokens_generated_total")


@pytest.mark.parametrize(
    ("held", "stop"),
    [([*HALF_A_CHARACTER, *[SILENT] * 3_000], []), ([104] * 3_000, ["x" * 3_001])],
    ids=["half a character", "stop prefix"],
)
def test_use_04_held_text_was_not_delivered(echo_server: RunningServer, held: list[int], stop: list[str]) -> None:
    """Three words came; what was held at the cut is generated and not delivered."""
    since = Since(echo_server)
    script = {"token_ids": [905] * 3 + held, "then": "eos"}
    body = body_of("USE-04", echo_server, simulate=script, stop=stop, max_tokens=4_000)
    with OpenRequest(echo_server.url, CHAT, body) as request:
        assert len(request.next_events(4)) == 4
        poll_until(lambda: since.growth("tailrace_tokens_generated_total") > 30, 2, lambda: "never ran")
    echo_server.wait_idle()
    (account,) = since.accounts()
    assert (account["written_tokens"], account["delivered_tokens"]) == (3, 3)
    assert account["undelivered_tokens"] == account["generated_tokens"] - 3 > 0


def test_use_04_the_sum_over_requests(echo_server: RunningServer) -> None:
    """Cut, whole, streamed and stopped: together they generated what the engine says."""
    since = Since(echo_server)
    body = body_of("USE-04", echo_server)
    for events in (0, 1, 7):
        with OpenRequest(echo_server.url, CHAT, body) as request:
            assert len(request.next_events(events) if events else [b""]) == max(events, 1)
    assert echo_server.post(CHAT, body | {"stream": False, "max_tokens": 9, "n": 2}).status_code == 200
    stopped = {"stop": ["ABC"], "simulate": {"token_ids": [49, 50, 51, 52, 53], "steps": [5], "then": "eos"}}
    assert echo_server.events(CHAT, body | stopped)
    echo_server.wait_idle()
    accounts = since.accounts(5)
    assert sum(account["generated_tokens"] for account in accounts) == since.growth("tailrace_tokens_generated_total")
    assert all(account["delivered_tokens"] <= account["generated_tokens"] for account in accounts)
    parts = ("delivered_tokens", "undelivered_tokens", "cut_tokens")
    assert all(sum(account[part] for part in parts) == account["generated_tokens"] for account in accounts)


def test_use_06_prompt_tokens_are_the_prompts(http: httpx.Client) -> None:
    """The same prompt twice, streamed and whole: all of it is counted once, and the cached part is within it."""
    body = {"messages": conversation_of(http, 2_000), "max_tokens": 3}
    for reply in (whole(http, CHAT, body), streamed(http, CHAT, body), whole(http, CHAT, body)):
        assert reply.usage is not None
        assert reply.usage["prompt_tokens"] == 2_000
        assert 0 <= reply.usage["prompt_tokens_details"]["cached_tokens"] <= 2_000
