"""What a stage of a streaming decoder is, and the stages that treat text: a small state machine for each decoder.

A stage takes a sequence's tokens one by one and gives pieces of text, whose join is what the decoder of the same name
in Hugging Face `tokenizers` gives for the whole sequence. Never any state but the value that it is handed and returns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

State = Any
"""A stage's own state: any hashable value."""
Token = str | bytes
"""Text, or raw bytes in vocabularies that are written down in bytes (tekken, tiktoken)."""


class Stage:
    """One decoder. Stateless unless a subclass says otherwise; the defaults pass tokens through."""

    initial: Hashable = None
    tail: int = 0
    """How many non-empty tokens at the end of a sequence settle the state, once `settled` is true."""

    middle: Hashable = None
    """The state in mid-text with nothing held: there a token of whole characters gives its `piece`, and no change."""
    steady: bool = True
    """False where there is no such state."""
    splits: bool = False
    """True where pieces are no longer the library's tokens, so that only `Fuse` may follow."""

    def step(self, state: State, token: Token) -> tuple[State, list[Token]]:
        """The state after one more token, and what is now certain."""
        return state, [self.piece(token)]

    def finish(self, state: State) -> list[Token]:
        """What was held back, when no token follows."""
        return []

    def piece(self, token: Token) -> Token:
        """What the token is worth in the middle of a text; bytes where it may hold a part of a character."""
        return token

    def settled(self, state: State) -> bool:
        """True once the start of the sequence has no influence on what follows."""
        return True

    def holds_bytes(self, state: State) -> bool:
        """True while an incomplete character is held."""
        return False


class Each(Stage):
    """A decoder that treats every token by itself."""

    def __init__(self, function: Callable[[str], str]) -> None:
        self._function = function

    def piece(self, token: Token) -> Token:
        return self._function(text_of(token))


class FirstDiffers(Stage):
    """A decoder that treats the first token of a sequence otherwise than the rest. State: whether one was seen."""

    initial = False
    middle = True

    def __init__(self, first: Callable[[str], str], later: Callable[[str], str]) -> None:
        self._first = first
        self._later = later

    def step(self, state: State, token: Token) -> tuple[State, list[Token]]:
        return True, [self._later(text_of(token)) if state else self._first(text_of(token))]

    def piece(self, token: Token) -> Token:
        return self._later(text_of(token))

    def settled(self, state: State) -> bool:
        return bool(state)


class WordEnd(Stage):
    """`BPEDecoder`: a word's suffix becomes a space, but not on the last token. State: its text from the suffix on."""

    initial = ""
    tail = 1
    steady = False
    splits = True

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def step(self, state: State, token: Token) -> tuple[State, list[Token]]:
        text = text_of(token)
        cut = text.find(self._suffix)
        kept = text if cut < 0 else text[:cut]
        return text[len(kept) :], [state.replace(self._suffix, " ") + kept]

    def finish(self, state: State) -> list[Token]:
        return [state.replace(self._suffix, "")]

    def piece(self, token: Token) -> Token:
        return text_of(token).replace(self._suffix, " ")


class Deduplicate(Stage):
    """`CTC`: of equal tokens in a row only the first counts. State: the token before."""

    tail = 1
    steady = False

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean

    def step(self, state: State, token: Token) -> tuple[State, list[Token]]:
        if token == state:
            return state, []
        text = self._clean(text_of(token))
        return token, [text] if text else []

    def piece(self, token: Token) -> Token:
        return self._clean(text_of(token))


class StripEnds(Stage):
    """`Strip` after `Fuse`: up to `start` and `stop` characters off the whole text. State: (left to strip, held)."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content = content
        self._stop = stop
        self.initial = (start, 0)
        self.middle = (0, 0)
        self.steady = stop == 0
        self.tail = stop

    def step(self, state: State, token: Token) -> tuple[State, list[Token]]:
        left, held = state
        text = text_of(token)
        while left and text:
            left = left - 1 if text[0] == self._content else 0
            text = text.removeprefix(self._content) if text[0] == self._content else text
        if not self._stop:
            return (left, 0), [text]
        text = self._content * held + text
        held = min(self._stop, len(text) - len(text.rstrip(self._content)))
        return (left, held), [text[: len(text) - held]]

    def settled(self, state: State) -> bool:
        return bool(state[0] == 0)


def text_of(token: Token) -> str:
    """The token as text; a chain never hands bytes to a stage that treats text."""
    if isinstance(token, bytes):
        raise TypeError("a decoder of text was given raw bytes")
    return token


_CLEANUPS: Final = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def clean_english(text: str) -> str:
    """The `cleanup` of the library's WordPiece and CTC decoders, which they apply to each token by itself."""
    for before, after in _CLEANUPS:
        text = text.replace(before, after)
    return text


def strip_each(content: str, start: int, stop: int) -> Callable[[str], str]:
    """`Strip` before any `Fuse`: off every token."""

    def strip(text: str) -> str:
        left = min(start, len(text) - len(text.lstrip(content)))
        right = min(stop, len(text) - len(text.rstrip(content)))
        return text[left : max(left, len(text) - right)]

    return strip
