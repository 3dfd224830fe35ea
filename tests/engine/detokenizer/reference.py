"""What is right, worked out the slow and obvious way: one-shot decoding, and a stop search that tries everything.

Never shares code with what it judges.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tokenizers import Tokenizer

from tests import vocabularies


def decoded(name: str, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """One-shot decoding of any ids; in byte-fallback vocabularies byte-wise, where the library gives up on a run."""
    tokenizer = vocabularies.tokenizer(name)
    known = [token_id for token_id in token_ids if 0 <= token_id < 2**32]
    if name in vocabularies.BYTE_LEVEL:
        return tokenizer.decode(known, skip_special_tokens=skip_special_tokens)
    hidden = _special_tokens(name) if skip_special_tokens else frozenset()
    text, valid = _byte_fallback(tokenizer, known, hidden)
    text = text.removeprefix(" ") if name == "llama2" else text
    if valid:
        assert text == tokenizer.decode(known, skip_special_tokens=skip_special_tokens)
    return text


@cache
def _special_tokens(name: str) -> frozenset[str]:
    added = vocabularies.tokenizer(name).get_added_tokens_decoder().values()
    return frozenset(token.content for token in added if token.special)


def _byte_fallback(tokenizer: Tokenizer, token_ids: Sequence[int], hidden: frozenset[str]) -> tuple[str, bool]:
    """The text, and whether every run of byte tokens is valid UTF-8."""
    tokens = [tokenizer.id_to_token(token_id) for token_id in token_ids]
    visible = [token for token in tokens if token is not None and token not in hidden]
    text, valid = "", True
    for is_bytes, run in itertools.groupby(visible, lambda token: token.startswith("<0x") and len(token) == 6):
        if not is_bytes:
            text += "".join(run).replace("▁", " ")
            continue
        data = bytes(int(token[3:5], 16) for token in run)
        text += data.decode(errors="replace")
        valid = valid and "\ufffd" not in data.decode(errors="replace")
    return text, valid


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a stop matcher has done after some pieces of text."""

    released: str
    matched: str | None
    held: str


def stopped(pieces: Sequence[tuple[str, bool]], stops: Sequence[str], *, include: bool) -> Stopped:
    """The outcome of (text, armed) pieces: every stop string tried at every character, every suffix as a prefix."""
    seen = ""
    for text, armed in pieces:
        for character in text:
            seen += character
            complete = [stop for stop in stops if seen.endswith(stop)]
            if armed and complete:
                longest = max(complete, key=len)
                return Stopped(seen if include else seen.removesuffix(longest), longest, "")
    starts = range(len(seen) + 1)
    held = next(seen[start:] for start in starts if _is_proper_prefix(seen[start:], stops))
    return Stopped(seen.removesuffix(held), None, held)


def _is_proper_prefix(text: str, stops: Sequence[str]) -> bool:
    return not text or any(stop.startswith(text) and stop != text for stop in stops)
