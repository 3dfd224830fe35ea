"""Each API key's bounds over HTTP: a 429 that says which and when, a slot that a vanished client gives back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.auth import hashed
from tests.running_server import RunningServer, simulated
from tests.server.replies import COMPLETIONS

KEYS = f"""[
  {{name: one-at-a-time, key: sk-one, max_concurrent: 1}},
  {{name: three-a-minute, key: "{hashed("sk-three")}", requests_per_minute: 3}},
  {{name: few-tokens, key: sk-few, tokens_per_minute: 60}},
  sk-free,
]"""
LONG = {"prompt": [905], "ignore_eos": True, "max_tokens": 8_000, "stream": True}
SHORT = {"prompt": [905], "ignore_eos": True, "max_tokens": 1}


@pytest.fixture(scope="module")
def limited(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with four keys; a step every 5 ms."""
    flags = simulated(demo_model, "engine.step_interval_ms=5")
    folder = tmp_path_factory.mktemp("limited")
    with RunningServer(*flags, "--set", f"server.api_keys={KEYS}", log_folder=folder) as server:
        yield server


def ask(server: RunningServer, key: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + COMPLETIONS, headers={"authorization": f"Bearer {key}"}, json=body, timeout=10)


def rejections(server: RunningServer, reason: str) -> float:
    return server.metrics()[f'tailrace_admission_rejections_total{{reason="{reason}"}}']


def assert_refused(response: httpx.Response, words: str) -> None:
    assert response.status_code == 429, response.text
    assert words in response.json()["error"]["message"]
    assert 1 <= int(response.headers["retry-after"]) <= 120


def test_a_key_runs_so_many_at_once(limited: RunningServer) -> None:
    """The next is refused, other keys are not, and a client that leaves makes room."""
    with ExitStack() as stack:
        headers = {"x-api-key": "sk-one"}
        stream = stack.enter_context(httpx.stream("POST", limited.url + COMPLETIONS, headers=headers, json=LONG))
        parts = stream.iter_raw()  # httpx closes the connection with the iterator
        assert next(parts)
        assert_refused(ask(limited, "sk-one", SHORT), "'one-at-a-time' has 1 requests running")
        assert ask(limited, "sk-free", SHORT).status_code == 200
    limited.wait_idle()
    assert ask(limited, "sk-one", SHORT).status_code == 200
    assert rejections(limited, "key_concurrency") == 1


def test_a_key_sends_so_many_a_minute(limited: RunningServer) -> None:
    """A minute's worth may come at once, the next is told to wait its share; a bad request takes nothing from it."""
    assert ask(limited, "sk-three", {"prompt": [905], "max_tokens": -1}).status_code == 400
    assert [ask(limited, "sk-three", SHORT).status_code for _ in range(3)] == [200] * 3
    refused = ask(limited, "sk-three", SHORT)
    assert_refused(refused, "'three-a-minute' may send 3 requests a minute")
    assert int(refused.headers["retry-after"]) > 10
    assert rejections(limited, "key_requests_rate") == 1


def test_a_key_uses_so_many_tokens(limited: RunningServer) -> None:
    """What an answer generated is charged when it has ended, beyond the bound as well, and is waited for."""
    assert ask(limited, "sk-few", SHORT | {"max_tokens": 100}).status_code == 200
    refused = ask(limited, "sk-few", SHORT)
    assert_refused(refused, "60 tokens a minute")
    assert int(refused.headers["retry-after"]) > 35
    assert rejections(limited, "key_tokens_rate") == 1


def test_no_secret_is_told(limited: RunningServer) -> None:
    """Messages and the log say a key's name, never the key."""
    log = limited.log_file.read_text()
    assert not [key for key in ("sk-one", "sk-three", "sk-few", "sk-free") if key in log]
