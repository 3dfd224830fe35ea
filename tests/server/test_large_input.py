"""A large request costs its sender, not the others: refused untokenized where it can't fit, else off the loop.

Never a bound on throughput: only that streams and health checks go on meanwhile.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.server.replies import CHAT, COMPLETIONS

LETTERS = "a " * 2_000_000
"""4 MB: more than five times what the longest tokens of the vocabulary could make of the context."""


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": LETTERS}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", LETTERS]}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": LETTERS}]}, "messages"),
        (COMPLETIONS, {"prompt": [905] * 900_000}, "prompt"),
    ],
    ids=["text", "texts", "chat", "token ids"],
)
def test_what_cannot_fit_is_not_tokenized(http: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    """A text too long for any tokenization of it to fit is refused at once."""
    began = time.monotonic()
    response = http.post(path, json=body)
    assert time.monotonic() - began < 1.5
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


def test_tokenizing_a_long_text_holds_up_nobody(http: httpx.Client) -> None:
    """While megabytes are tokenized for one client, the others are answered."""
    text = LETTERS[:2_000_000]
    slowest = 0.0
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(http.post, "/tokenize", json={"prompt": text})
        while not long.done():
            began = time.monotonic()
            assert http.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - began)
    assert long.result().status_code == 200
    assert slowest < 0.7
