"""What a client makes of an answer: a stream's chunks and a whole answer folded into the same record, to be compared.

Never lenient: a frame that is not one ASCII `data:` line, or a stream without its terminal event, fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
DONE = b"data: [DONE]"
MESSAGES = [{"role": "user", "content": "hi"}]


@dataclass(slots=True)
class Choice:
    """One choice, however it came."""

    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Tool calls as a whole answer has them."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    """Lists that a stream's chunks are joined into; empty where none were sent."""

    def take(self, part: Mapping[str, Any]) -> None:
        """A chunk's choice, or the whole one."""
        assert self.finish_reason is None, "nothing of a choice follows its end"
        said = part.get("delta") or part.get("message") or part
        kinds = {"reasoning_content", "content", "tool_calls"} & {name for name, value in said.items() if value}
        assert "message" in part or len(kinds) <= 1, "a delta has one kind of text"
        self.text += said.get("content", said.get("text")) or ""
        self.reasoning += said.get("reasoning_content") or ""
        for call in said.get("tool_calls") or ():
            self._take_call(call)
        self.finish_reason = part["finish_reason"]
        self.stop_reason = part.get("stop_reason")
        for name, entries in (part["logprobs"] or {}).items():
            if entries is not None:
                self.logprobs.setdefault(name, []).extend(entries)

    def _take_call(self, call: Mapping[str, Any]) -> None:
        """A whole call; or a stream's delta, which says once who the call is, and then only how it goes on."""
        if "index" not in call:
            self.calls.append(dict(call))
        elif "id" in call:
            assert call["index"] == len(self.calls), "calls begin in order, each once"
            assert call["function"]["arguments"] == ""
            self.calls.append({name: value for name, value in call.items() if name != "index"})
        else:
            assert call["index"] == len(self.calls) - 1, "no call goes on after the next has begun"
            assert set(call) == {"index", "function"}
            assert set(call["function"]) == {"arguments"}
            function = self.calls[-1]["function"]
            self.calls[-1]["function"] = function | {"arguments": function["arguments"] + call["function"]["arguments"]}


@dataclass(slots=True)
class Reply:
    """An answer as its client knows it at the end."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None

    def take(self, part: Mapping[str, Any]) -> None:
        for choice in part["choices"]:
            self.choices.setdefault(choice["index"], Choice()).take(choice)
        self.usage = part.get("usage") or self.usage

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> str | None:
        """Of the first choice."""
        return self.choices[0].finish_reason


def folded(parts: Iterable[Mapping[str, Any]]) -> Reply:
    """The reply that these chunks, or this one whole answer, add up to."""
    reply = Reply()
    for part in parts:
        reply.take(part)
    return reply


def frames_of(body: bytes) -> list[bytes]:
    """The blocks of an event stream, comments left out. Each is one line of printable ASCII."""
    assert body.endswith(b"\n\n")
    blocks = body.removesuffix(b"\n\n").split(b"\n\n")
    assert all(0x20 <= byte < 0x7F for block in blocks for byte in block)
    return [block for block in blocks if not block.startswith(b":")]


def chunks_of(body: bytes) -> list[Any]:
    """The parsed events of a stream that ended well."""
    *frames, last = frames_of(body)
    assert last == DONE
    return [parsed(frame) for frame in frames]


def parsed(frame: bytes) -> Any:
    """One event's JSON, in which NaN and Infinity are no numbers."""
    assert frame.startswith(b"data: ")
    return json.loads(frame.removeprefix(b"data: "), parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def chunks(http: httpx.Client, path: str, body: Mapping[str, Any]) -> list[Any]:
    """The chunks of a streamed answer."""
    response = http.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return chunks_of(response.content)


def whole(http: httpx.Client, path: str, body: Mapping[str, Any]) -> Reply:
    """The whole answer, folded."""
    response = http.post(path, json={**body, "stream": False})
    assert response.status_code == 200, response.text
    return folded([json.loads(response.content, parse_constant=_refuse)])


def streamed(http: httpx.Client, path: str, body: Mapping[str, Any]) -> Reply:
    """The streamed answer, folded, with usage asked for."""
    return folded(chunks(http, path, {**body, "stream_options": {"include_usage": True}}))


def scripted(path: str, token_ids: Sequence[int], *, steps: Sequence[int] = (), then: str = "eos") -> dict[str, Any]:
    """A request whose answer is these ids, in engine steps of these sizes."""
    prompt: dict[str, Any] = {"messages": MESSAGES} if path == CHAT else {"prompt": [1]}
    simulate = {"token_ids": list(token_ids), "steps": list(steps), "then": then}
    return prompt | {"max_tokens": 4_000, "simulate": simulate}
