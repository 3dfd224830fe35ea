"""Reported faults of structured output, on a real model: what can't be compiled is its own request's 400.

Never a structure that only the simulated engine refuses: `test_reported_rows` has those.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.running_server import RunningServer
from tests.server.replies import CHAT, MESSAGES, streamed, whole
from tests.server.reported_rows import Row, rows

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.parametrize("model_flags", ["transformers"], indirect=True, scope="session"),
]


@pytest.fixture
def model(model_server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=model_server.url, timeout=60) as client:
        yield client


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in rows("ROB-04")])
def test_rob_04_what_cannot_be_compiled(model: httpx.Client, row: Row) -> None:
    """Each row is a 400 that names its field, streamed or not, and a normal request after it succeeds."""
    for body in row.bodies(model):
        response = model.post(row.path, content=body)
        assert response.status_code == 400, response.text
        assert row.names(response.json()["error"]["param"])
    assert whole(model, CHAT, {"messages": MESSAGES, "max_tokens": 2}).finish_reason == "length"


def test_rob_04_what_can_be_compiled(model: httpx.Client) -> None:
    """The older field of a regular expression that is one holds the answer to it."""
    body = {"messages": MESSAGES, "max_tokens": 20, "temperature": 0, "guided_regex": "a{3,5}b"}
    reply = whole(model, CHAT, body)
    assert reply.text in {"aaab", "aaaab", "aaaaab"}
    assert reply.finish_reason == "stop"
    assert streamed(model, CHAT, body).choices == reply.choices
