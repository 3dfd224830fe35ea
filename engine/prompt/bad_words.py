"""Words that an answer must not hold, as the token sequences that spell them; and that something is left to choose.

Never exact: a word that the model spells with other tokens passes, in vLLM as here. Source: vLLM's SamplingParams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from engine.errors import InvalidRequestError
from engine.types import ModelLimits, SamplingParams

Encode = Callable[[str], Sequence[int]]
"""The ids of a piece of text, without BOS."""


def banned_sequences(words: Sequence[str], encode: Encode) -> tuple[tuple[int, ...], ...]:
    """Each word as it stands at an answer's beginning and, where that is spelled otherwise, behind a space.

    Raises `InvalidRequestError` for a word that has no tokens.
    """
    return tuple(dict.fromkeys(sequence for word in words for sequence in _spellings(word.lstrip(), encode)))


def _spellings(word: str, encode: Encode) -> Iterator[tuple[int, ...]]:
    bare, spaced = tuple(encode(word)), tuple(encode(f" {word}"))
    if not bare:
        raise InvalidRequestError("bad_words: a word has no tokens", param="bad_words")
    yield bare
    # One token more is the space itself and then the bare word, which is banned already.
    if len(spaced) == len(bare) and spaced[0] != bare[0]:
        yield spaced


def check_choice_left(sampling: SamplingParams, limits: ModelLimits) -> None:
    """Raises `InvalidRequestError` where some step could be left without any token to choose."""
    out = {sequence[-1] for sequence in sampling.bad_words}
    if sampling.min_tokens:
        out |= sampling.stop_token_ids | limits.eos_token_ids
    allowed = sampling.allowed_token_ids
    left = limits.vocab_size - len(out) if allowed is None else len(allowed - out)
    if (allowed is not None or out) and left < 1:
        field = "bad_words" if allowed is None else "allowed_token_ids"
        message = f"{field}: with bad_words, min_tokens and the ids that end an answer, no token may be left to choose"
        raise InvalidRequestError(message, param=field)
