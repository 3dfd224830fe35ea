"""Rows of reported faults as requests: each row's fields put into a valid request, and the lengths that it names made.

Never a check of an answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from tests.server.replies import CHAT, COMPLETIONS, MESSAGES
from tests.server.reported_cases import CASES

ROW_CASES = ("ROB-01", "ROB-02", "ROB-03", "ROB-04", "ROB-10", "ROB-13", "SSE-03", "SSE-05")
"""Cases that are nothing but rows."""
LENGTHS = {"context-1 tokens": -1, "context tokens": 0, "context+1 tokens": 1, "context-5 tokens": -5}
"""Prompts by their tokens beside the context's length."""
TOO_LONG = "prompt of max_model_len+1 tokens"
MANY = "[[1]] repeated 100000 times"
VALID: dict[str, dict[str, Any]] = {CHAT: {"messages": MESSAGES}, COMPLETIONS: {"prompt": [905]}}


@dataclass(frozen=True, slots=True)
class Row:
    """One row for one path."""

    name: str
    path: str
    expect: object
    """The file's words, or its status."""
    fields: dict[str, Any]
    raw: str = ""
    """A JSON object's text as the file has it, in the place of fields."""

    def bodies(self, http: httpx.Client) -> Iterator[bytes]:
        """The request, also as the stream or the whole answer that the row does not name."""
        fields = {name: _made(http, name, value) for name, value in self.fields.items()}
        for stream in (True, False):
            body = {**VALID[self.path], "max_tokens": 2, "stream": stream, **fields}
            if self.raw:
                yield (json.dumps(body)[:-1] + ", " + self.raw[1:]).encode()  # of two equal fields the last counts
            elif "stream_options" in fields or self.name.startswith("SSE-03"):
                yield json.dumps(body).encode()
                return
            else:
                yield json.dumps(body | {"stream": stream}).encode()

    def names(self, param: str | None) -> bool:
        """Whether an error's `param` is a field of this row, or within one. What is no JSON has none."""
        if self.raw and param is None:
            return not _is_json(self.raw)
        return param is not None and param.split(".")[0].split("[")[0] in (self.fields or self.raw)


def rows(case_id: str) -> Iterator[Row]:
    """The case's rows, once for each path that it names."""
    case = CASES[case_id]
    for path in case["path"].split(" and "):
        for rank, raw in enumerate(case.get("raw_bodies", ())):
            yield Row(f"{case_id}-{rank}", path, case["expect"], {}, raw)
        for rank, row in enumerate(case.get("rows", ())):
            fields = {name: value for name, value in row.items() if name not in ("expect", "path")}
            yield Row(f"{case_id}-{rank}", row.get("path", path), row["expect"], fields)


def _made(http: httpx.Client, name: str, value: Any) -> Any:
    if value == MANY:
        return [[1]] * 100_000
    if value == TOO_LONG:
        return conversation_of(http, context_length(http) + 1)
    if name == "prompt" and isinstance(value, str) and value in LENGTHS:
        return [905] * (context_length(http) + LENGTHS[value])
    return value


def context_length(http: httpx.Client) -> int:
    length: int = http.get("/v1/models").json()["data"][0]["max_model_len"]
    return length


def conversation_of(http: httpx.Client, tokens: int) -> list[dict[str, str]]:
    """A conversation that is so many tokens long with its template."""

    def of(words: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": " world" * words}]

    def count(words: int) -> int:
        counted: int = http.post("/tokenize", json={"messages": of(words)}).json()["count"]
        return counted

    words = tokens - count(1) + 1
    assert count(words) == tokens
    return of(words)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _is_json(text: str) -> bool:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except ValueError:
        return False
    return math.inf not in value.values()  # as 1e999 is read
