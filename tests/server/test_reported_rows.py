"""Reported faults that are tables of requests: each row's answer is what its own words ask for, and hurts nobody else.

Never words that this file does not know: a row that is new to it fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import httpx
import pytest

from tests.running_server import RunningServer
from tests.server.replies import COMPLETIONS, chunks_of, folded, whole
from tests.server.reported_cases import Since
from tests.server.reported_rows import ROW_CASES, Row, rows

ANSWER_SECONDS = 1.0
MOST_GROWTH_BYTES = 50_000_000
"""Both of ROB-02, held by every row here."""
ROWS = [row for case_id in ROW_CASES for row in rows(case_id)]


@pytest.fixture(autouse=True)
def nothing_left(echo_server: RunningServer, http: httpx.Client) -> Iterator[None]:
    """Right after each row a normal request succeeds; nothing runs or waits, and memory has not grown."""
    since = Since(echo_server)
    yield
    assert whole(http, COMPLETIONS, {"prompt": [905]}).text == " world"
    echo_server.wait_idle()
    assert since.growth("process_resident_memory_bytes") < MOST_GROWTH_BYTES


def answers(http: httpx.Client, row: Row) -> list[httpx.Response]:
    return [http.post(row.path, content=body) for body in row.bodies(http)]


def refused(http: httpx.Client, row: Row) -> None:
    """A 400 in the error shape that names the field, the same for a stream as for a whole answer, at once."""
    told = []
    for response in answers(http, row):
        assert response.status_code == 400, response.text
        assert response.headers["content-type"] == "application/json"
        assert response.elapsed.total_seconds() < ANSWER_SECONDS
        (error,) = response.json().values()
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert row.names(error["param"]), error
        told.append((error["type"], error["param"], error["code"]))
    assert len(set(told)) == 1


def served(http: httpx.Client, row: Row) -> None:
    assert [response.status_code for response in answers(http, row)] == [200, 200]


def served_without_none(http: httpx.Client, row: Row) -> None:
    """The engine says the rendered prompt back."""
    stream, answer = answers(http, replace(row, fields=row.fields | {"max_tokens": 200}))
    for text in (folded(chunks_of(stream.content)).text, folded([answer.json()]).text):
        assert "ok" in text
        assert "None" not in text


def one_token(http: httpx.Client, row: Row) -> None:
    stream, answer = answers(http, row)
    reply = folded([answer.json()])
    assert (reply.text, reply.finish_reason) == (" world", "length")
    assert folded(chunks_of(stream.content)).choices == reply.choices
    assert reply.usage is not None
    assert reply.usage["completion_tokens"] == 1


def no_usage(http: httpx.Client, row: Row) -> None:
    (response,) = answers(http, row)
    assert all(chunk["choices"] and not chunk.get("usage") for chunk in chunks_of(response.content))


def usage_last(http: httpx.Client, row: Row) -> None:
    (response,) = answers(http, row)
    *others, last = chunks_of(response.content)
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in others)
    assert last["choices"] == []
    usage = last["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0


EXPECTED: dict[object, Callable[[httpx.Client, Row], None]] = {
    400: refused,
    "400": refused,
    "400 JSON": refused,
    "400 JSON, not text/event-stream": refused,
    "400 on SmolLM2 (49152 ids)": refused,
    "400 when logprobs is not true": refused,
    "400, or clamped to the context": refused,
    "400, or clamped to 5 with finish length; documented": refused,
    "400 or 413": refused,
    "400 or supported": refused,
    "400 or zero tokens": refused,
    "400 or BOS only": refused,
    "200 with the prompt and zero completion tokens, or 400": refused,
    "each (merged into a valid chat body) is a 400 with an OpenAI error object, or a documented coercion; never 500, "
    "never a hang": refused,
    "400 or empty text": served,
    "200 or 400, not 500": served,
    '200; rendered prompt has no "None"': served_without_none,
    "200, one token, length": one_token,
    "no usage chunk": no_usage,
    "last chunk before [DONE]: choices == [] and usage.total == prompt + completion": usage_last,
}
"""What this server does of what the words allow."""


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.name}{row.path}") for row in ROWS])
def test_row(http: httpx.Client, row: Row) -> None:
    """The answer is the one that the case's words ask for."""
    EXPECTED[row.expect](http, row)


def test_every_expectation_is_used() -> None:
    """The table has no words that no row says."""
    assert set(map(json.dumps, EXPECTED)) == {json.dumps(row.expect) for row in ROWS}
