"""A tokenizer's vocabulary, compiled for decoding: shared by all requests.

Never encodes text, and never logs: `exact_bytes` and `description` tell the caller what was compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self, cast

from engine.detokenizer.chain import Chain, Unstreamable, build_chain
from engine.detokenizer.library_decoders import (
    DecodeAll,
    PythonTokenizer,
    ask_backend,
    ask_file,
    ask_python,
    backend_of,
    bytes_in_text,
)
from engine.detokenizer.model_files import read_sentencepiece_file, read_tekken_file, read_tiktoken_file
from engine.detokenizer.token_table import TokenTable, read_tokenizer, read_tokenizer_file
from engine.detokenizer.transducer import Transducer
from engine.detokenizer.window import WindowState


class DecodingState(Protocol):
    """Where one sequence's decoding stands."""

    @property
    def pending(self) -> bool:
        """True while an incomplete character is held."""

    def __getitem__(self, token_id: int, /) -> tuple[str, DecodingState]:
        """The text that the id completes, and where decoding stands after it."""

    def finish(self) -> str:
        """The text held back, when no token follows."""


class Vocabulary:
    """Token ids and the text that they stand for.

    `exact_bytes`: decoding is known byte by byte, so streamed text is exact; otherwise a sliding window is decoded.
    """

    def __init__(self, table: TokenTable, decoder: Chain | DecodeAll, description: str) -> None:
        """The classmethods choose the decoder: a chain of streaming stages, or one-shot decoding for the window."""
        self._table = table
        self._decoder = decoder
        self.exact_bytes = isinstance(decoder, Chain)
        self.description = f"{description} ({len(table.tokens)} tokens)"
        self.special_ids = table.special_ids
        self.size = 1 + max(table.tokens, default=-1)
        """One more than the highest id known."""
        self._transducers: dict[frozenset[int], Transducer] = {}
        """By the ids that they hide: none, the special ones, the special ones but for a family's markers."""
        self._hidden: dict[tuple[str, ...], frozenset[int]] = {(): self.special_ids}
        """The ids that skipping special tokens hides, by the texts that are shown all the same."""

    @classmethod
    def from_tokenizer_file(cls, path: str | Path) -> Self:
        """Compiles a `tokenizer.json`. Raises `ModelLoadError` where it is none."""
        return cls._compile(read_tokenizer_file(Path(path)), lambda: ask_file(Path(path)))

    @classmethod
    def from_tokenizer(cls, tokenizer: object) -> Self:
        """Compiles a `tokenizers.Tokenizer`, or a `transformers` tokenizer without its clean-up of spaces.

        A `transformers` class that decodes in Python (the "slow" ones, and some others) takes the sliding window.
        """
        backend = backend_of(tokenizer)
        if backend is not None:
            return cls._compile(read_tokenizer(backend), lambda: ask_backend(backend))
        known = cast("PythonTokenizer", tokenizer)
        ids = [*known.get_vocab().items(), *known.get_added_vocab().items()]
        table = TokenTable({token_id: token for token, token_id in ids}, frozenset(known.all_special_ids), None)
        return cls(table, ask_python(tokenizer), f"sliding window: {type(tokenizer).__name__} decodes in Python")

    @classmethod
    def from_sentencepiece_file(cls, path: str | Path) -> Self:
        """Compiles a SentencePiece model (`tokenizer.model`). Raises `ModelLoadError` where it is none."""
        return cls(*read_sentencepiece_file(Path(path)), "exact transducer")

    @classmethod
    def from_tekken_file(cls, path: str | Path) -> Self:
        """Compiles mistral-common's `tekken.json`. Raises `ModelLoadError` where it is none."""
        return cls(*read_tekken_file(Path(path)), "exact transducer")

    @classmethod
    def from_tiktoken_file(cls, path: str | Path, special_tokens: Mapping[str, int]) -> Self:
        """Compiles a `*.tiktoken` file and its special tokens by name. Raises `ModelLoadError` where it is none."""
        return cls(*read_tiktoken_file(Path(path), special_tokens), "exact transducer")

    @classmethod
    def _compile(cls, table: TokenTable, one_shot: Callable[[], DecodeAll]) -> Self:
        try:
            return cls(table, build_chain(table.decoder), "exact transducer")
        except Unstreamable as reason:
            return cls(table, one_shot(), f"sliding window: {reason}")

    def start(
        self, prompt: Sequence[int], skip_special_tokens: bool, spaces_between: bool, shown: tuple[str, ...] = ()
    ) -> DecodingState:
        """The state after a prompt; `IncrementalDetokenizer` begins here.

        `shown`: special tokens that are part of one of these texts are not skipped. Known texts are remembered, so they
        are to come from the server's own tables.
        """
        hidden = self._hidden_ids(shown) if skip_special_tokens else frozenset[int]()
        decoder = self._decoder
        if isinstance(decoder, Chain):
            return self._transducer(decoder, hidden).after_prompt(prompt)
        tokens, skips = self._table.tokens, skip_special_tokens and not shown
        return WindowState(
            lambda ids: decoder(ids, skips, spaces_between),
            lambda token_id: token_id in tokens and token_id not in hidden,
            prompt,
        )

    def _hidden_ids(self, shown: tuple[str, ...]) -> frozenset[int]:
        hidden = self._hidden.get(shown)
        if hidden is None:
            texts = {token_id: self.token_bytes(token_id).decode(errors="replace") for token_id in self.special_ids}
            seen = {token_id for token_id, token in texts.items() if token and any(token in text for text in shown)}
            hidden = self._hidden[shown] = self.special_ids - seen
        return hidden

    def _transducer(self, chain: Chain, hidden: frozenset[int]) -> Transducer:
        transducer = self._transducers.get(hidden)
        if transducer is None:
            transducer = self._transducers[hidden] = Transducer(chain, self._table.tokens, hidden)
        return transducer

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that an id adds in mid-text, those of a part of a character included; none for an unknown id."""
        token = self._table.tokens.get(token_id)
        if token is None:
            return b""
        decoder = self._decoder
        return decoder.token_bytes(token) if isinstance(decoder, Chain) else bytes_in_text(decoder, token_id)
