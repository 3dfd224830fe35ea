"""The server's OpenAPI document is true: a short run of schema_calls, and that it would find what is untrue.

The long run is `python -m tests.server.schema_calls --calls 5000`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer, simulated
from tests.server import schema_calls
from tests.server.schema_calls import CHECKS, SETTINGS, Findings, call_all


@pytest.fixture(scope="module")
def server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(*simulated(demo_model, *SETTINGS), log_folder=tmp_path_factory.mktemp("calls")) as running:
        yield running


def test_no_answer_is_undocumented(server: RunningServer) -> None:
    """Whatever is called, kept to the document or not: no 5xx, no undocumented status, type or shape; nothing stays."""
    findings = call_all(server.url, 300, first_seed=1)
    assert findings.faults == {}, findings.report()
    assert findings.calls > 200
    answered = {route for route, status in findings.statuses if status == 200}
    assert {"POST /v1/chat/completions", "POST /v1/completions"} <= answered
    server.wait_idle()


def test_what_is_untrue_is_found(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fails where a check does: were any answer a fault, it would be told with a command to repeat it."""

    def never(*_: Any) -> None:
        raise AssertionError("an ordinary answer")

    monkeypatch.setattr(schema_calls, "CHECKS", [*CHECKS, never])
    findings = call_all(server.url, 1, first_seed=1)
    assert findings.faults
    assert f"curl -X GET {server.url}/health" in findings.report()


def test_every_reference_of_the_document_resolves(server: RunningServer) -> None:
    """Generated clients can read it, and it promises no answer of FastAPI's own."""
    document = httpx.get(f"{server.url}/openapi.json").json()
    schemas = document["components"]["schemas"]
    found = {name.removeprefix("#/components/schemas/") for name in references(document)}
    assert found <= set(schemas)
    assert "Error" in found
    statuses = {status for path in document["paths"].values() for one in path.values() for status in one["responses"]}
    assert "422" not in statuses


def references(value: Any) -> Iterator[str]:
    """Every `$ref` in a document."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_no_calls_are_no_faults() -> None:
    """The report of nothing says so."""
    assert Findings().report() == "0 calls, 0 kinds of faults"
