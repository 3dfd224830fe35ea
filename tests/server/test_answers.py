"""What an answer says beside its text: choices, prompts, finish reasons, usage, logprobs, the order of chunks."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.replies import CHAT, COMPLETIONS, MESSAGES, chunks, folded, frames_of, scripted, streamed, whole

HELLO = [19556, 15107, 230, 131]
"""`Hello`, then an emoji in three tokens."""
both_paths = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


@both_paths
def test_the_order_of_a_stream(http: httpx.Client, path: str) -> None:
    """Chat: each choice's role first. Then text; one finish chunk a choice; usage last where asked for; `[DONE]`."""
    body = scripted(path, HELLO) | {"n": 3, "stream_options": {"include_usage": True}}
    *events, last = chunks(http, path, body)
    assert last["choices"] == []
    choices = [choice for event in events for choice in event["choices"]]
    if path == CHAT:
        assert [choice["delta"] for choice in choices[:3]] == [{"role": "assistant", "content": ""}] * 3
        assert not any("role" in choice["delta"] or "tool_calls" in choice["delta"] for choice in choices[3:])
    ended = [choice["index"] for choice in choices if choice["finish_reason"] is not None]
    assert sorted(ended) == [0, 1, 2]
    assert choices[0]["index"] == 0
    assert all(event["usage"] is None for event in events)


@both_paths
def test_n_choices(http: httpx.Client, path: str) -> None:
    """Each of n choices is whole, and usage is their sum over a prompt counted once."""
    body = scripted(path, HELLO) | {"n": 4}
    reply = streamed(http, path, body)
    assert reply == whole(http, path, body)
    assert [reply.choices[index].text for index in range(4)] == ["Hello 🌶"] * 4
    assert reply.usage is not None
    assert reply.usage["completion_tokens"] == 16
    alone = whole(http, path, scripted(path, HELLO)).usage
    assert alone is not None
    assert reply.usage["prompt_tokens"] == alone["prompt_tokens"]


@pytest.mark.parametrize(
    ("prompt", "texts", "prompt_tokens"),
    [
        ("Hello world", ["Hello world"], 2),
        (["Hello", " world world"], ["Hello", " world world"], 3),
        ([19556, 905], ["Hello world"], 2),
        ([[19556], [905, 905]], ["Hello", " world world"], 3),
    ],
)
def test_every_kind_of_prompt(http: httpx.Client, prompt: Any, texts: list[str], prompt_tokens: int) -> None:
    """Text, texts, ids and lists of ids are prompts, each with n choices in order."""
    for n in (1, 2):
        body = {"prompt": prompt, "n": n, "max_tokens": 50}
        reply = streamed(http, COMPLETIONS, body)
        assert reply == whole(http, COMPLETIONS, body)
        assert [reply.choices[index].text for index in sorted(reply.choices)] == [
            text for text in texts for _ in range(n)
        ]
        assert reply.usage is not None
        assert reply.usage["prompt_tokens"] == prompt_tokens
        assert reply.usage["completion_tokens"] == n * prompt_tokens


@both_paths
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "stop"),
        ({"max_tokens": 2}, "length"),
        ({"stop": ["lo"]}, "stop"),
        ({"stop_token_ids": [15107]}, "stop"),
        ({"ignore_eos": True, "max_tokens": 4}, "stop"),
    ],
)
def test_finish_reasons(http: httpx.Client, path: str, fields: dict[str, Any], reason: str) -> None:
    """The end says why, in the one chunk that has it."""
    body = scripted(path, HELLO) | fields
    reply = streamed(http, path, body)
    assert reply.finish_reason == reason
    assert reply == whole(http, path, body)


def test_then_length(http: httpx.Client) -> None:
    """A script may end as if by its length."""
    assert whole(http, CHAT, scripted(CHAT, HELLO, then="length")).finish_reason == "length"


@both_paths
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"continuous_usage_stats": True}])
def test_no_usage_unless_asked_for(http: httpx.Client, path: str, options: dict[str, bool] | None) -> None:
    """Without `include_usage` no chunk speaks of usage, and none is without a choice."""
    for chunk in chunks(http, path, scripted(path, HELLO) | {"stream_options": options}):
        assert chunk["choices"]
        assert "usage" not in chunk


@both_paths
def test_continuous_usage(http: httpx.Client, path: str) -> None:
    """Counts are totals so far: they never fall, and the last is the final usage and that of the whole answer."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = scripted(path, HELLO * 3, steps=[1, 3, 1]) | {"n": 2}
    events = chunks(http, path, body | {"stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert (counts[0], counts[-2:]) == (0 if path == CHAT else counts[0], [24, 24])
    assert events[-1]["choices"] == []
    assert folded(events).usage == whole(http, path, body).usage
    assert all(
        event["usage"]["total_tokens"] == sum(event["usage"][name] for name in ("prompt_tokens", "completion_tokens"))
        for event in events
    )


def test_usage_of_choices_of_different_length(http: httpx.Client) -> None:
    """The final count is the sum over choices, each counted once (4 and 2 tokens)."""
    body = {"prompt": [HELLO, [827, 1924]], "max_tokens": 50}
    assert streamed(http, COMPLETIONS, body).usage == {
        "prompt_tokens": 6,
        "completion_tokens": 6,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_chat_logprobs(http: httpx.Client) -> None:
    """One entry a token with its own bytes, joined to the answer's UTF-8; a partial character looks like no other."""
    body = scripted(CHAT, HELLO) | {"logprobs": True, "top_logprobs": 1}
    reply = streamed(http, CHAT, body)
    assert reply == whole(http, CHAT, body)
    content = reply.choices[0].logprobs["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "Hello 🌶"
    assert [entry["token"] for entry in content] == ["Hello", r"bytes:\x20\xf0\x9f", r"bytes:\x8c", r"bytes:\xb6"]
    assert all(len(entry["top_logprobs"]) == 1 and entry["logprob"] == 0.0 for entry in content)


def test_completions_logprobs(http: httpx.Client) -> None:
    """Four lists of one length; offsets are characters of the answer."""
    body = scripted(COMPLETIONS, HELLO) | {"logprobs": 0}
    reply = streamed(http, COMPLETIONS, body)
    assert reply == whole(http, COMPLETIONS, body)
    lists = reply.choices[0].logprobs
    assert {name: len(entries) for name, entries in lists.items()} == dict.fromkeys(
        ("tokens", "token_logprobs", "top_logprobs", "text_offset"), 4
    )
    assert lists["text_offset"] == [0, 5, 6, 6]


def test_held_text_holds_back_its_logprobs(http: httpx.Client) -> None:
    """At every chunk the tokens told of so far are no more than the text so far completes."""
    body = scripted(CHAT, [17638, 33203, 23960, *HELLO]) | {"logprobs": True, "stop": ["DEFGHIJ"]}
    text, tokens = "", b""
    for event in chunks(http, CHAT, body):
        (choice,) = event["choices"]
        text += choice["delta"].get("content", "")
        entries = choice["logprobs"]["content"] if choice["logprobs"] else []
        tokens += b"".join(bytes(entry["bytes"]) for entry in entries)
        assert text.encode().startswith(tokens)
    assert tokens.decode() == text == " ABCDEFGHHello 🌶"


def test_the_echo_is_the_prompt(http: httpx.Client) -> None:
    """Without a script the simulated engine says the prompt's own ids: here the rendered conversation."""
    reply = whole(http, CHAT, {"messages": MESSAGES, "max_tokens": 500})
    assert reply.text.endswith("user\nhi\nassistant\n")
    assert reply.usage is not None
    assert reply.usage["prompt_tokens"] == reply.usage["completion_tokens"]


def test_ignore_eos_goes_on_to_max_tokens(http: httpx.Client) -> None:
    """The echo begins again, and only `max_tokens` ends it."""
    reply = streamed(http, COMPLETIONS, {"prompt": [905], "ignore_eos": True, "max_tokens": 40})
    assert (reply.text, reply.finish_reason) == (" world" * 40, "length")


def test_null_is_absent(http: httpx.Client) -> None:
    """A field that is null is as if it had not been sent."""
    names = (
        "stop",
        "n",
        "temperature",
        "seed",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "stream_options",
        "tools",
        "model",
    )
    body = scripted(CHAT, HELLO) | dict.fromkeys(names)
    assert whole(http, CHAT, body).text == "Hello 🌶"


def test_a_tool_history_renders(http: httpx.Client) -> None:
    """An assistant's turn that only called tools has empty content in the prompt, never the word None."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    reply = whole(http, CHAT, {"messages": messages, "max_tokens": 500})
    assert "None" not in reply.text
    assert "ok" in reply.text


def test_stream_headers(http: httpx.Client) -> None:
    """What keeps proxies from holding a stream, and the request's id under both SDKs' names."""
    response = http.post(CHAT, json=scripted(CHAT, HELLO) | {"stream": True})
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"] == response.headers["request-id"]
    assert frames_of(response.content)
