"""The shipped nginx.conf before a real server: tokens trickle, who leaves is gone, limits are the server's."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.configs.running_nginx import SHIPPED, RunningNginx
from tests.running_server import RunningServer, poll_until, simulated
from tests.server.open_request import OpenRequest

STEP_SECONDS = 0.02
APART_SECONDS = STEP_SECONDS / 4
"""Events that come closer to one another than this came in one burst."""
MAX_BODY_BYTES = 16 * 1024 * 1024
PATH = "/v1/completions"
TOKENS = 40
STREAM: dict[str, Any] = {"prompt": [905], "ignore_eos": True, "max_tokens": TOKENS, "stream": True}
ENDLESS = STREAM | {"max_tokens": 4_000}
PLAIN = """
events {}
http {
    server {
        listen 8080;
        location / { proxy_pass http://127.0.0.1:8000; }
    }
}
"""
"""What a person writes who knows nothing of streams."""
BUFFERING = PLAIN.replace("location / {", "location / { proxy_ignore_headers X-Accel-Buffering;")
"""nginx's defaults, for a server that does not ask for better."""


@pytest.fixture(scope="module")
def server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A step every 20 ms; a prompt of 2,000 tokens takes 32 steps; a keep-alive after a tenth of a second."""
    settings = (
        f"engine.step_interval_ms={STEP_SECONDS * 1000}",
        "engine.max_num_batched_tokens=64",
        "server.keepalive_seconds=0.1",
    )
    flags = simulated(demo_model, *settings)
    with RunningServer(*flags, log_folder=tmp_path_factory.mktemp("behind_nginx")) as running:
        yield running


def in_front_of(server: RunningServer, configuration: str, folder: Path) -> RunningNginx:
    return RunningNginx(configuration, server.url.removeprefix("http://"), folder)


@pytest.fixture(scope="module")
def nginx(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNginx]:
    """With the shipped configuration."""
    with in_front_of(server, SHIPPED.read_text(), tmp_path_factory.mktemp("nginx")) as running:
        yield running


def arrivals(url: str, tokens: int = TOKENS) -> list[float]:
    """Seconds from the request to each event of a stream."""
    began = time.monotonic()
    with OpenRequest(url, PATH, STREAM | {"max_tokens": tokens}) as request:
        return [time.monotonic() - began for _ in request.blocks()]


def bursts(times: list[float]) -> float:
    """Separate arrivals for each event: 1 where all came by themselves."""
    apart = sum(later - earlier > APART_SECONDS for earlier, later in pairwise(times))
    return (1 + apart) / len(times)


def test_the_first_byte_is_as_fast(server: RunningServer, nginx: RunningNginx) -> None:
    """Through nginx the first event takes no more than a fifth longer than without it: medians, taken in turns."""
    direct, through = [], []
    for _ in range(25):
        direct.append(arrivals(server.url, 1)[0])
        through.append(arrivals(nginx.url, 1)[0])
    assert statistics.median(through) < 1.2 * statistics.median(direct), (direct, through)


def test_tokens_trickle(server: RunningServer, nginx: RunningNginx) -> None:
    """Events come one by one, a step apart, as they do without nginx."""
    direct, through = (statistics.median(bursts(arrivals(url)) for _ in range(3)) for url in (server.url, nginx.url))
    assert through > 0.9 * direct > 0.8


def test_default_buffering_makes_bursts(server: RunningServer, nginx: RunningNginx, tmp_path: Path) -> None:
    """Without the directives, and without the header that asks for the same, tokens wait for a buffer to fill."""
    with in_front_of(server, BUFFERING, tmp_path) as naive:
        times = [arrivals(naive.url) for _ in range(3)]
    assert statistics.median(map(bursts, times)) < 0.5 * bursts(arrivals(nginx.url))
    assert min(first for first, *_ in times) > 5 * STEP_SECONDS + arrivals(nginx.url)[0]


def test_the_header_alone_is_enough(server: RunningServer, tmp_path: Path) -> None:
    """A plain nginx does not buffer either: each stream bears `X-Accel-Buffering: no`."""
    with in_front_of(server, PLAIN, tmp_path) as plain:
        assert statistics.median(bursts(arrivals(plain.url)) for _ in range(3)) > 0.8


@pytest.mark.parametrize("events", [0, 3], ids=["in prefill", "decoding"])
def test_a_client_that_leaves_is_gone(server: RunningServer, nginx: RunningNginx, events: int) -> None:
    """Its connection to nginx closed, its sequence ends and its blocks are free, as without nginx."""
    server.wait_idle()
    ended = 'tailrace_streams_total{{end_state="client_cancelled",endpoint="/v1/completions",phase="{}"}}'.format(
        "between_tokens" if events else "first_token"
    )
    before = server.metrics().get(ended, 0)
    body = ENDLESS if events else ENDLESS | {"prompt": [905] * 2_000}
    with OpenRequest(nginx.url, PATH, body) as request:
        poll_until(lambda: server.metrics()["tailrace_sequences_running"] == 1, 2, lambda: "it does not run")
        assert len(request.next_events(events)) == events
    server.wait_idle(1)
    assert server.metrics()[ended] == before + 1


def test_keepalives_come_through(nginx: RunningNginx) -> None:
    """The silence of a long prefill is broken at nginx's client as well, before the first token."""
    began = time.monotonic()
    with OpenRequest(nginx.url, PATH, STREAM | {"prompt": [905] * 2_000, "max_tokens": 1}) as request:
        blocks = [(time.monotonic() - began, block) for block in request.blocks()]
    assert blocks[0][1].startswith(b":")
    assert blocks[0][0] < 0.5 * next(at for at, block in blocks if not block.startswith(b":"))


def padded(size: int) -> bytes:
    """A request of so many bytes."""
    body = json.dumps({"prompt": [905], "max_tokens": 1}).encode()
    return body + b" " * (size - len(body))


@pytest.mark.parametrize("chunked", [False, True], ids=["content-length", "chunked"])
def test_bodies_up_to_the_limit(nginx: RunningNginx, chunked: bool) -> None:
    """The largest body that the server takes comes through; one byte more is a 413 that an SDK can read."""
    for excess, status in ((0, 200), (1, 413)):
        body = padded(MAX_BODY_BYTES + excess)
        content = iter([body[:1_000_000], body[1_000_000:]]) if chunked else body
        answer = httpx.post(nginx.url + PATH, content=content, timeout=30)
        assert answer.status_code == status
        assert "error" in answer.json() if excess else answer.json()["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("client_id", ["mine", None])
def test_requests_can_be_found_in_both_logs(server: RunningServer, nginx: RunningNginx, client_id: str | None) -> None:
    """The client's id, or one that nginx gives, is in the server's log line; its own id reaches the client."""
    headers = {} if client_id is None else {"x-request-id": client_id}
    answer = httpx.post(nginx.url + PATH, json={"prompt": [905], "max_tokens": 1}, headers=headers)
    wanted = {"event": "request", "request_id": answer.headers["x-request-id"]}
    poll_until(lambda: bool(server.log_records(**wanted)), 2, lambda: f"no line of {wanted}")
    (record,) = server.log_records(**wanted)
    assert record["client_request_id"] == client_id if client_id else len(record["client_request_id"]) == 32


def test_metrics_stay_inside(nginx: RunningNginx) -> None:
    """What Prometheus reads, nginx does not show to the world."""
    assert httpx.get(nginx.url + "/metrics").status_code == 404
    assert httpx.get(nginx.url + "/health").status_code == 200


def test_a_server_that_is_down_is_a_503(tmp_path: Path) -> None:
    """Without a server behind it nginx says in JSON when to come back."""
    with RunningNginx(SHIPPED.read_text(), "127.0.0.1:1", tmp_path) as alone:
        answer = httpx.post(alone.url + PATH, json={"prompt": "x"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["code"] == "server_unavailable"
