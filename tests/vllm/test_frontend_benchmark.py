"""The front-end benchmark on the mock core: its bytes are vLLM's, and a real server on it is measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.frontend import token_ids
from benchmarks.frontend.client import Load, LoadClient
from benchmarks.frontend.matrix import Cell, run
from benchmarks.frontend.servers import FrontEnd, Place
from benchmarks.served import NAME
from tests.running_server import poll_until

TOKEN_IDS = [19556, 905, 0, 49_151]


@pytest.mark.parametrize("count", [1, 15, 16, 300])
def test_the_bytes_are_vllms(count: int) -> None:
    """Of outputs in mid-answer and at the end, of small steps and large ones, with and without what is gone."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
    from vllm.v1.metrics.stats import SchedulerStats
    from vllm.v1.serial_utils import MsgpackDecoder

    from benchmarks.frontend.mock_wire import MockRequest, encoded, encoded_tokens, step_message

    for left, reason, gone in ((9, None, set[str]()), (1, FinishReason.LENGTH, {"r-7"})):
        sent, plain = [], []
        for number in range(count):
            request = MockRequest(f"r-{number}", 3, left, 0, time.monotonic(), 0, begun=True)
            token_id = TOKEN_IDS[number % len(TOKEN_IDS)]
            sent.append(request.output(encoded_tokens(token_id), time.monotonic()))
            plain.append(EngineCoreOutput(f"r-{number}", [token_id], finish_reason=reason))
        message = step_message(sent, count, gone, 0)
        decoded = MsgpackDecoder(EngineCoreOutputs).decode(message)
        stats = SchedulerStats(num_running_reqs=count)
        whole = EngineCoreOutputs(
            outputs=plain, scheduler_stats=stats, timestamp=decoded.timestamp, finished_requests=gone or None
        )
        assert message == encoded(whole)


@pytest.fixture(scope="module")
def place(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("frontend")
    token_ids.write(demo_model, folder / "ids.json")
    return Place(folder, demo_model, folder / "ids.json", 0, 0, None)


@pytest.fixture(scope="module")
def tailrace(place: Place) -> Iterator[FrontEnd]:
    """Our server on the mock core."""
    with FrontEnd("tailrace", place) as server:
        yield server


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("interval_ms", [0.0, 5.0])
def test_a_server_is_measured(tailrace: FrontEnd, place: Place, endpoint: str, interval_ms: float) -> None:
    """Every token comes; in an event of its own where the core waits for each, else some may merge with the next."""
    client = LoadClient(place.folder, 0)
    done = run(tailrace, Cell(Load(endpoint, streams=5, rounds=2, max_tokens=40), interval_ms), client)
    assert done.figures.tokens == 400
    assert done.lost_tokens == 0
    assert done.events_per_token == 1 or (interval_ms and done.events_per_token > 0.5)
    assert done.figures.gap_p50_ms > 0


def test_a_client_that_leaves_is_confirmed(tailrace: FrontEnd) -> None:
    """The mock core says which requests left it, as the real one does, so that no abort stays open."""
    tailrace.board.interval_us = 5_000
    body = {"model": NAME, "prompt": "x", "max_tokens": 4_000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{tailrace.url}/v1/completions", json=body, timeout=30) as answer:
        next(answer.iter_bytes())

    def confirmed() -> bool:
        metrics = httpx.get(f"{tailrace.url}/metrics").text
        counts = [line for line in metrics.splitlines() if line.startswith("tailrace_abort_seconds_count")]
        return any(not line.endswith(" 0.0") for line in counts)

    poll_until(confirmed, 5, lambda: httpx.get(f"{tailrace.url}/metrics").text)
