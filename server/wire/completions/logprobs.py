"""Completions' `logprobs`: four parallel lists over the tokens, aligned with the text by `text_offset`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.output.events import TokenRecord
from server.wire.openai_answer import logprob_number, token_string


def logprobs_object(records: Sequence[TokenRecord], token_bytes: Callable[[int], bytes]) -> dict[str, Any]:
    """`text_offset` counts characters from the beginning of the answer."""
    return {
        "tokens": [token_string(record.data) for record in records],
        "token_logprobs": [
            logprob_number(record.logprobs.chosen if record.logprobs is not None else float("-inf"))
            for record in records
        ],
        "top_logprobs": [_top(record, token_bytes) for record in records],
        "text_offset": [record.start for record in records],
    }


def _top(record: TokenRecord, token_bytes: Callable[[int], bytes]) -> dict[str, float]:
    if record.logprobs is None:
        return {}
    top = {token_string(token_bytes(token_id)): logprob_number(logprob) for token_id, logprob in record.logprobs.top}
    # The hosted API adds the chosen token where it is not among the likeliest.
    top.setdefault(token_string(record.data), logprob_number(record.logprobs.chosen))
    return top
