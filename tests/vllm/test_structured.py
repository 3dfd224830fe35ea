"""Structured output of `tailrace serve --engine vllm`: held to, refused before the headers, harmless to the engine.

What an answer says is the small model's own; that it keeps to its shape is vLLM's and this project's.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.tokenizer import Tokenizer
from tests.engine.grammar.ten_schemas import SCHEMAS, prompt, validates
from tests.running_server import RunningServer
from tests.server.replies import CHAT, COMPLETIONS, streamed, whole

pytestmark = pytest.mark.parametrize("model_flags", ["vllm"], indirect=True)
EBNF = 'root ::= sum "!"\nsum ::= [1-9] (" + " [1-9]){1,3}\n'
NASTY: dict[str, tuple[dict[str, Any], int]] = {
    "slow": ({"allOf": [{"type": "string", "pattern": f"a.{{{number}}}b.*c"} for number in range(1, 300)]}, 400),
    "large": ({"type": "string", "pattern": "(a{1,9000}b{1,9000}){1,9000}"}, 200),
    "endless": ({"$ref": "#"}, 400),
    "negated": ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}}, 400),
    "ambiguous": ({"anyOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(40)]}, 200),
}
"""What would take minutes or gigabytes if it were compiled naively, and what comes of it here."""


def asking(question: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], "max_tokens": 200, "temperature": 0, **fields}


def format_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def test_ten_schemas(model_server: RunningServer, demo_model: Path) -> None:
    """All at once, every other one streamed: each answer ends by itself and is valid by its schema."""
    tokenizer = Tokenizer.from_folder(demo_model)

    def answer(name: str, number: int) -> list[tuple[str | None, str]]:
        question, schema = SCHEMAS[name]
        ask = streamed if number % 2 else whole
        body = {"prompt": prompt(tokenizer, question), "max_tokens": 200, "temperature": 0, "frequency_penalty": 0.5}
        with httpx.Client(base_url=model_server.url, timeout=120) as client:
            reply = ask(client, COMPLETIONS, body | {"response_format": format_of(schema)})
        return [(choice.finish_reason, choice.text) for choice in reply.choices.values()]

    with ThreadPoolExecutor(len(SCHEMAS)) as pool:
        answers = dict(zip(SCHEMAS, pool.map(answer, SCHEMAS, range(len(SCHEMAS))), strict=True))
    for name, choices in answers.items():
        for finish_reason, text in choices:
            assert (finish_reason, validates(name, text)) == ("stop", True), (name, text)
    model_server.wait_idle()


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"choice": ["positive", "très négatif 😀"]}}, "positive|très négatif 😀"),
        ({"structured_outputs": {"regex": r"[A-Z][a-z]{2,9}, \d{4}"}}, r"[A-Z][a-z]{2,9}, \d{4}"),
        ({"structured_outputs": {"grammar": EBNF}}, r"[1-9]( \+ [1-9]){1,3}!"),
        ({"structured_outputs": {"json": {"const": {"a ::= b": [1, None]}}}}, r'\{"a ::= b": ?\[1, ?null\]\}'),
        ({"response_format": {"type": "json_object"}, "max_tokens": 20}, r"(?s)\{.*"),
    ],
    ids=["choice", "regex", "grammar", "json", "json_object"],
)
def test_every_language(model_server: RunningServer, fields: dict[str, Any], pattern: str) -> None:
    """At a temperature, and for each of several choices."""
    with httpx.Client(base_url=model_server.url, timeout=120) as client:
        reply = whole(client, CHAT, asking("Say something.", n=3, seed=1) | {"temperature": 1} | fields)
    assert len(reply.choices) == 3
    for choice in reply.choices.values():
        assert re.fullmatch(pattern, choice.text), choice.text


@pytest.mark.parametrize("name", NASTY)
def test_what_could_end_the_engine_does_not_reach_it(model_server: RunningServer, name: str) -> None:
    """A 400 that names the client's field, or an answer; the engine is the same one before and after, and serves."""
    restarts = model_server.metrics()["tailrace_engine_restarts_total"]
    schema, status = NASTY[name]
    body = asking("Say something.", response_format=format_of(schema), max_tokens=8)
    answer = model_server.post(CHAT, body)
    assert answer.status_code == status, answer.text
    if status == 400:
        assert answer.json()["error"]["param"] == "response_format.json_schema.schema"
    assert model_server.metrics()["tailrace_engine_restarts_total"] == restarts
    assert model_server.post(CHAT, asking("Hello", max_tokens=1)).status_code == 200


@pytest.mark.parametrize("fields", [{"min_tokens": 3}, {"ignore_eos": True}], ids=["min_tokens", "ignore_eos"])
def test_what_would_lead_out_of_a_structure_is_refused(model_server: RunningServer, fields: dict[str, Any]) -> None:
    """By name: vLLM ends an answer where its structure ends."""
    refused = model_server.post(CHAT, asking("Say something.", guided_choice=["yes"], **fields))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(fields)))
