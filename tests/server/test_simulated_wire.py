"""Any id sequence on the wire gives exactly its text: streamed, whole, and however the engine groups it into steps."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from client.sse import SSEDecoder
from tests.server.replies import CHAT, COMPLETIONS, Reply, chunks, scripted, streamed, whole

CASES = Path(__file__).parents[1] / "cases"
PEPPER = [187, 249, 230, 131]
"""U+1F336 in four tokens of one byte each."""
both_paths = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Tokenizer:
    """One-shot decoding by the tokenizer's own library."""
    return Tokenizer.from_file(str(demo_model / "tokenizer.json"))


def groupings(count: int) -> Iterator[list[int]]:
    """Ways to put so many tokens into engine steps; what a list leaves goes one a step."""
    yield []
    yield [count or 1]
    yield [2] * count
    yield [3] * count
    yield [1, max(count - 1, 1)]
    yield [(2, 1, 5)[position % 3] for position in range(count)]


def every_way(http: httpx.Client, path: str, token_ids: Sequence[int], *, then: str = "eos", **fields: Any) -> Reply:
    """The reply that streaming, not streaming and every grouping agree on."""
    replies = []
    for steps in groupings(len(token_ids)):
        body = scripted(path, token_ids, steps=steps, then=then) | fields
        replies += [whole(http, path, body), streamed(http, path, body)]
    assert all(reply == replies[0] for reply in replies)
    return replies[0]


SEQUENCES = {
    "an emoji in four tokens": (PEPPER, "🌶"),
    "an emoji across a special token": ([*PEPPER[:2], 1, *PEPPER[2:]], "🌶"),
    "half an emoji at the end": ([19556, *PEPPER[:3]], "Hello\ufffd"),
    "bytes that are no UTF-8": ([131, 131, 2231, 187, 4979], "\ufffd\ufffdok\ufffd fine"),
    "unknown and negative ids": ([19556, 49_152, -1, 2**40, -(2**63) + 1, 905], "Hello world"),
    "only unknown ids": ([49_152, -7], ""),
    "nothing": ([], ""),
    "line ends and NUL": ([49, 321, 118, 50, 321, 119, 51, 141, 223, 52, 201, 198, 53, 190, 54], None),
}


@both_paths
@pytest.mark.parametrize("name", SEQUENCES)
def test_text_is_exact(http: httpx.Client, reference: Tokenizer, path: str, name: str) -> None:
    """The text is that of one-shot decoding, in each API, streamed and whole, in steps of every size."""
    token_ids, text = SEQUENCES[name]
    expected = reference.decode(token_ids) if text is None else text
    reply = every_way(http, path, token_ids)
    assert reply.text == expected
    assert reply.finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage["completion_tokens"] == len(token_ids)


@pytest.mark.parametrize(
    "text", ["水は高い所から低い所へ", "안녕 👩‍👩‍👧‍👦", "สวัสดี", "नमस्ते é\u0301", "a\u2028b\u0085c\r\nd"]
)
def test_every_script(http: httpx.Client, reference: Tokenizer, text: str) -> None:
    """Text of any script survives, though this vocabulary cuts most of its characters."""
    assert every_way(http, CHAT, reference.encode(text).ids).text == text


def test_random_ids(http: httpx.Client, reference: Tokenizer) -> None:
    """Whatever ids come, in whatever steps, the text is one-shot decoding's."""
    draw = random.Random(2)
    for _ in range(40):
        few = [draw.randrange(300) for _ in range(draw.randint(1, 40))]
        token_ids = [draw.randrange(49_152) if draw.random() < 0.3 else token_id for token_id in few]
        steps = [draw.randint(1, 6) for _ in token_ids]
        body = scripted(COMPLETIONS, token_ids, steps=steps) | {"skip_special_tokens": draw.random() < 0.5}
        expected = reference.decode(token_ids, skip_special_tokens=body["skip_special_tokens"])
        assert streamed(http, COMPLETIONS, body).text == expected
        assert whole(http, COMPLETIONS, body).text == expected


@both_paths
def test_a_stop_string_over_five_tokens(http: httpx.Client, path: str) -> None:
    """Nothing of the stop string leaves, and the tokens behind it are not counted."""
    token_ids = [17638, 33203, 23960, 57, 58, 59, 34519]
    reply = every_way(http, path, token_ids, stop=["DEFGHIJ"])
    assert (reply.text, reply.finish_reason) == (" ABC", "stop")
    assert reply.usage is not None
    assert reply.usage["completion_tokens"] == 5
    kept = every_way(http, path, token_ids, stop=["DEFGHIJ"], include_stop_str_in_output=True)
    assert kept.text == " ABCDEFGHIJ"


def reported_cases() -> Iterator[Any]:
    """The `ids` cases of public fault reports whose tokenizer the demo model has."""
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(CASES.glob("*.jsonl")))
    for line in text.split("\n")[:-1]:
        fault = json.loads(line)
        case = fault["case"]
        for rank, part in enumerate(case["cases"] if case["kind"] == "multi" else [case]):
            parser = "reasoning_parser" in part.get("params", {})
            if part["kind"] == "ids" and part["tokenizer"] == "smollm2" and not parser:
                yield pytest.param(part, id=f"{fault['id']}-{rank}")


@pytest.mark.parametrize("case", list(reported_cases()))
def test_reported_faults_over_http(http: httpx.Client, case: dict[str, Any]) -> None:
    """Text, end, usage and logprobs of every reported case are right where a client sees them."""
    expect = case["expect"]
    fields = {**case.get("params", {}), "logprobs": 0}
    if case["prompt_ids"]:
        fields["prompt"] = case["prompt_ids"]
    then = "length" if case["then"] == "max_tokens" else "eos"
    reply = every_way(http, COMPLETIONS, case["ids"], then=then, **fields)
    assert reply.text in expect.get("text_any_of", [expect.get("text", reply.text)])
    assert reply.finish_reason == expect.get("finish_reason", reply.finish_reason)
    assert not any(part in reply.text for part in expect.get("never_contains", ()))
    assert reply.usage is not None
    counted = reply.usage["completion_tokens"]
    assert counted == expect.get("completion_tokens", counted)
    assert len(reply.choices[0].logprobs.get("tokens", ())) == expect.get("logprobs_len", counted)


def test_every_line_reader_agrees(http: httpx.Client) -> None:
    """Line separators of every kind are the same to our decoder and to a client that splits lines by Python's rules."""
    body = scripted(CHAT, SEQUENCES["line ends and NUL"][0]) | {"stream": True}
    response = http.post(CHAT, json=body)
    decoder = SSEDecoder()
    ours = [event.data for event in decoder.feed(response.content)]
    theirs = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert ours == theirs
    assert max(response.content) < 0x7F
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"


@both_paths
def test_the_whole_answer_has_the_streams_identity(http: httpx.Client, path: str) -> None:
    """Every chunk says the same id, time and model; the id is the request's, as the header has it."""
    response = http.post(path, json=scripted(path, PEPPER) | {"stream": True})
    events = chunks(http, path, scripted(path, PEPPER))
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in events}) == 1
    assert all(isinstance(event["created"], int) for event in events)
    assert events[0]["object"] == ("chat.completion.chunk" if path == CHAT else "text_completion")
    assert response.headers["x-request-id"] in response.text
