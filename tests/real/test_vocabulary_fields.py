"""`allowed_token_ids` and `bad_words` on the real model, through a real port, on each engine that has one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.running_server import RunningServer

pytestmark = pytest.mark.real_model

PATH = "/v1/completions"
QUESTION = "The capital of France is"


def text_of(server: RunningServer, **fields: Any) -> str:
    body = {"prompt": QUESTION, "max_tokens": 8, "temperature": 0, **fields}
    text: str = server.post(PATH, body).json()["choices"][0]["text"]
    return text


def ids_of(server: RunningServer, text: str) -> list[int]:
    tokens: list[int] = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return tokens


def test_a_bad_word_does_not_come(model_server: RunningServer) -> None:
    """The demo model knows Paris and, told not to say it, says something else; a word of several tokens too."""
    assert "Paris" in text_of(model_server)
    assert "Paris" not in text_of(model_server, bad_words=["Paris"])
    usual = text_of(model_server, max_tokens=30)
    phrase = " ".join(usual.split()[1:4])
    assert len(ids_of(model_server, phrase)) > 1
    assert phrase not in text_of(model_server, max_tokens=30, bad_words=[phrase])


def test_only_allowed_tokens_come(model_server: RunningServer) -> None:
    """At any temperature the answer is of these tokens alone."""
    allowed = [*ids_of(model_server, " blue"), *ids_of(model_server, " red")]
    for temperature in (0, 1.5):
        text = text_of(model_server, allowed_token_ids=allowed, temperature=temperature, seed=3)
        assert set(text.split()) <= {"blue", "red"}
        assert len(text.split()) == 8
