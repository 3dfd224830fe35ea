"""`tailrace chat`: a conversation in the terminal with any server that speaks Chat Completions.

Never a stream taken for complete without its terminal event: a cut is said.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
from rich.console import Console

from client.sse import SSEDecoder

DONE = "[DONE]"


class ChatError(Exception):
    """The server refused, failed or was cut off; the message says which."""


def chat_loop(url: str, *, model: str | None, system: str | None, api_key: str | None) -> None:
    """Reads turns from standard input until an empty one; streams each answer to standard output."""
    console = Console(highlight=False)
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    with httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(600, connect=10)) as client:
        try:
            name = model or first_model(client)
            console.print(f"[dim]{name} at {url}; an empty line ends[/dim]")
            while text := _ask(console):
                messages.append({"role": "user", "content": text})
                messages.append({"role": "assistant", "content": _say(client, name, messages)})
        except (ChatError, httpx.HTTPError) as error:
            console.print(f"[red]{error}[/red]")
            raise SystemExit(1) from None


def first_model(client: httpx.Client) -> str:
    """The id of the first model that the server lists."""
    response = client.get("/v1/models")
    _raise_for(response)
    models = response.json().get("data") or []
    if not models:
        raise ChatError("the server lists no model")
    return str(models[0]["id"])


def stream_answer(client: httpx.Client, body: Mapping[str, Any]) -> Iterator[str]:
    """The text deltas of one streamed chat completion. `ChatError` on an error event or a missing end."""
    decoder = SSEDecoder()
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        if response.is_error:
            response.read()
            _raise_for(response)
        for data in response.iter_bytes():
            for event in decoder.feed(data):
                if event.data == DONE:
                    return
                yield _text_of(json.loads(event.data))
    raise ChatError("the stream was cut before its end")


def _text_of(chunk: Mapping[str, Any]) -> str:
    if (error := chunk.get("error")) is not None:
        raise ChatError(f"the server failed: {error.get('message', error) if isinstance(error, dict) else error}")
    choices = chunk.get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


def _ask(console: Console) -> str:
    try:
        return console.input("[bold]> [/bold]").strip()
    except (EOFError, KeyboardInterrupt):
        return ""


def _say(client: httpx.Client, model: str, messages: list[dict[str, str]]) -> str:
    parts = []
    for text in stream_answer(client, {"model": model, "messages": messages}):
        parts.append(text)
        sys.stdout.write(text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return "".join(parts)


def _raise_for(response: httpx.Response) -> None:
    if response.is_error:
        raise ChatError(f"the server answered {response.status_code}: {response.text[:500]}")
