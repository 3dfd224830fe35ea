"""Faults that users of other servers reported, read from `tests/cases`: their requests, and what waits for a later API.

Never a check of an answer. The files stay as they came: what a test needs besides is here or in the test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.running_server import RunningServer, poll_until
from tests.server.replies import COMPLETIONS

Case = dict[str, Any]
FOLDER = Path(__file__).parents[1] / "cases"
KEY = "sk-cases"
"""Of the servers that ask for one."""
FILES = ("cancel", "usage", "robust", "sse")


def _faults() -> Iterator[tuple[str, Case]]:
    for name in FILES:
        for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
            fault = json.loads(line)
            yield fault["id"], fault["case"]


CASES: dict[str, Case] = dict(_faults())
"""By their ids."""


def body_of(case_id: str, server: RunningServer, **fields: Any) -> Case:
    """The case's request for the model that is served, its scripted ids, and more fields."""
    case = CASES[case_id]
    body = dict(case["request"]["body"])
    body["model"] = server.get("/v1/models", {"x-api-key": KEY}).json()["data"][0]["id"]
    if "emit_ids" in (script := case.get("engine", {})):
        body["simulate"] = {"token_ids": script["emit_ids"], "then": script["then"]}
    return body | fields


@dataclass(frozen=True, slots=True)
class Waiting:
    """A case, or a part of one, for which the API does not exist yet: the request that is refused until then."""

    case_id: str
    issue: int
    """Whose work it is."""
    part: str
    path: str
    body: Mapping[str, Any]
    status: int
    code: str | None
    """Of the error; None: any."""
    method: str = "POST"


_HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def _messages(case_id: str, part: str = "all of it") -> Waiting:
    """Needs Anthropic's API."""
    body = CASES[case_id].get("request", {}).get("body", {})
    return Waiting(case_id, 7, part, "/v1/messages", {**_HI, **body}, 404, "not_found")


WAITING = (
    _messages("USE-06", "Anthropic's usage"),
    _messages("SSE-04", "Anthropic's error event"),
    _messages("SSE-05", "Anthropic's error envelope"),
    _messages("SSE-13"),
    _messages("SSE-14"),
    _messages("ROB-09", "x-api-key on Anthropic's route"),
    _messages("ROB-10", "tool_use blocks"),
    _messages("SSE-11", "no empty text block"),
    Waiting("SSE-01", 7, "events with ids", "/v1/streams/x", {}, 404, "not_found", method="GET"),
    Waiting(
        "SSE-09",
        6,
        "the prompt's log probabilities",
        COMPLETIONS,
        {"prompt": "a", "echo": True, "logprobs": 5},
        400,
        None,
    ),
)
"""What no test runs yet; that it is still refused is one."""
WAITING_WHOLLY = frozenset({"SSE-13", "SSE-14"})
"""Cases of which nothing else is a test."""

ABORTED = 'tailrace_sequences_aborted_total{reason="disconnect"}'


class Since:
    """What a server counted and logged since this moment, at which it was idle."""

    def __init__(self, server: RunningServer) -> None:
        server.wait_idle()
        self._server = server
        self._before = server.metrics()
        self._lines = len(server.log_records(event="request"))

    def growth(self, name: str) -> float:
        """Of a metric, by its name with labels or, summed over them, without."""
        now = self._server.metrics()
        return sum(
            value - self._before.get(sample, 0)
            for sample, value in now.items()
            if sample == name or sample.startswith(name + "{")
        )

    def accounts(self, count: int = 1) -> list[dict[str, Any]]:
        """So many ended requests, and not one more."""
        poll_until(lambda: len(self._ended()) >= count, 2, lambda: f"{len(self._ended())} of {count} lines in the log")
        ended = self._ended()
        assert len(ended) == count
        return ended

    def _ended(self) -> list[dict[str, Any]]:
        return self._server.log_records(event="request")[self._lines :]
