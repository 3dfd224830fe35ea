"""Every case of the four files is run by a test of its name, or waits for an API that is still refused."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.server.reported_cases import CASES, WAITING, WAITING_WHOLLY, Waiting
from tests.server.reported_rows import ROW_CASES

TEST = re.compile(r"^(?:async )?def test_(can|use|rob|sse)_(\d\d)_", re.MULTILINE)


def named_by_tests() -> set[str]:
    """The cases after which tests beside this one are called."""
    sources = (file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_reported_*.py"))
    return {f"{match[1].upper()}-{match[2]}" for source in sources for match in TEST.finditer(source)}


def test_every_case_is_a_test_or_waits() -> None:
    """No case is forgotten, none is invented, and what waits wholly is not tested behind the table's back."""
    tested = named_by_tests() | set(ROW_CASES)
    assert tested | WAITING_WHOLLY == set(CASES)
    assert tested & WAITING_WHOLLY == set()
    assert {waiting.case_id for waiting in WAITING} <= set(CASES)
    assert {waiting.case_id for waiting in WAITING} >= WAITING_WHOLLY


@pytest.mark.parametrize("waiting", WAITING, ids=lambda waiting: f"{waiting.case_id}: {waiting.part}")
def test_what_waits_is_refused(http: httpx.Client, waiting: Waiting) -> None:
    """The day its API is there this fails, and the case becomes a test."""
    response = http.request(waiting.method, waiting.path, json=dict(waiting.body))
    assert response.status_code == waiting.status, response.text
    assert waiting.code in (None, response.json()["error"]["code"])
