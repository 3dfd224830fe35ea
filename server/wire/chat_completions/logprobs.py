"""Chat Completions' `logprobs.content`: one entry a token, with its raw bytes and the likeliest alternatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.output.events import TokenRecord
from server.wire.openai_answer import logprob_number, token_string


def logprobs_object(records: Sequence[TokenRecord], token_bytes: Callable[[int], bytes]) -> dict[str, Any]:
    """`bytes` are the token's own: joined over the answer they are its UTF-8, also where a character is split."""
    return {"content": [_entry(record, token_bytes) for record in records], "refusal": None}


def _entry(record: TokenRecord, token_bytes: Callable[[int], bytes]) -> dict[str, Any]:
    logprobs = record.logprobs
    chosen = logprobs.chosen if logprobs is not None else float("-inf")
    top = logprobs.top if logprobs is not None else ()
    entry = _token(record.data, chosen)
    entry["top_logprobs"] = [_token(token_bytes(token_id), logprob) for token_id, logprob in top]
    return entry


def _token(data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token_string(data), "logprob": logprob_number(logprob), "bytes": list(data)}
