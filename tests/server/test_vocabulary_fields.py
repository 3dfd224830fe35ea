"""`allowed_token_ids`, `bad_words` and `truncate_prompt_tokens` over HTTP, on the simulated engine: what it can show.

Never a model: that these hold for one is in tests/real.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.replies import CHAT, COMPLETIONS, scripted, streamed, whole


@pytest.mark.parametrize("keep", [1, 2, 5, -1])
def test_the_end_of_a_prompt_is_kept(http: httpx.Client, keep: int) -> None:
    """The engine gets the last ids, which it echoes, and usage counts only them."""
    prompt = [19_556, 905, 19_556, 905, 905]
    kept = prompt[-keep:] if keep > 0 else prompt
    body = {"prompt": prompt, "max_tokens": 10, "truncate_prompt_tokens": keep}
    expected = whole(http, COMPLETIONS, {"prompt": kept, "max_tokens": 10})
    for reply in (whole(http, COMPLETIONS, body), streamed(http, COMPLETIONS, body)):
        assert (reply.text, reply.finish_reason) == (expected.text, expected.finish_reason)
        assert reply.usage is not None
        assert reply.usage["prompt_tokens"] == len(kept)


def test_a_prompt_beyond_the_context_is_cut(http: httpx.Client) -> None:
    """With -1 a prompt of any length that can be read is served, and leaves room for the answer asked for."""
    body: dict[str, Any] = {"prompt": [905] * 9_000, "max_tokens": 2, "truncate_prompt_tokens": -1}
    reply = whole(http, COMPLETIONS, body)
    assert reply.usage is not None
    assert (reply.usage["prompt_tokens"], reply.usage["completion_tokens"]) == (8_190, 2)
    chat = {"messages": [{"role": "user", "content": "word " * 9_000}], "max_tokens": 2, "truncate_prompt_tokens": 7}
    reply = whole(http, CHAT, chat)
    assert reply.usage is not None
    assert reply.usage["prompt_tokens"] == 7


@pytest.mark.parametrize("fields", [{"allowed_token_ids": [905]}, {"bad_words": ["world"]}])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_scripted_answer_is_the_clients_own(http: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    """Without a model the vocabulary can't be bounded and that is refused by name; a script is taken as it is."""
    script = scripted(path, [19_556])
    assert whole(http, path, script | fields).text == "Hello"
    del script["simulate"]
    response = http.post(path, json=script | fields)
    assert response.status_code == 400
    (name,) = fields
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")


def test_embeddings_are_refused_with_the_reason(http: httpx.Client) -> None:
    """No engine here embeds: a 400 in OpenAI's shape, whatever is sent, and no bare 404."""
    for body in (b"", b"{}", b'{"input": "a", "model": "x"}', b"nonsense"):
        response = http.post("/v1/embeddings", content=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "model", "no_embeddings")
        assert "embed" in error["message"]
    assert http.get("/v1/embeddings").status_code == 405
