"""One-shot decoding by the libraries themselves, for what the tables can't express; and when that is needed.

Never imports `transformers`: it asks the object that it is handed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from tokenizers import Tokenizer

DecodeAll = Callable[[list[int], bool, bool], str]
"""One-shot decoding: ids, skip_special_tokens, spaces_between_special_tokens."""


class PythonTokenizer(Protocol):
    """What is used of a `transformers` tokenizer that decodes in Python."""

    @property
    def all_special_ids(self) -> Sequence[int]:
        """Ids that `skip_special_tokens` leaves out."""

    def get_vocab(self) -> Mapping[str, int]:
        """Ids by token."""

    def get_added_vocab(self) -> Mapping[str, int]:
        """Ids of added tokens."""

    def decode(self, token_ids: list[int], **flags: bool) -> str:
        """One-shot decoding."""


def backend_of(tokenizer: object) -> Tokenizer | None:
    """The `tokenizers.Tokenizer` that does all the decoding of this object: itself, the one inside it, or none.

    A fast `transformers` class that overrides decoding has none: its Python code must be asked.
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    order = type(tokenizer).__mro__

    def defined_at(name: str) -> int:
        return next((rank for rank, base in enumerate(order) if name in vars(base)), -1)

    backend_at = defined_at("backend_tokenizer")
    if backend_at < 0 or min(defined_at("decode"), defined_at("_decode")) < backend_at:
        return None
    backend = tokenizer.backend_tokenizer  # type: ignore[attr-defined]
    return backend if isinstance(backend, Tokenizer) else None


def ask_backend(tokenizer: Tokenizer) -> DecodeAll:
    """A `tokenizers.Tokenizer` knows no spaces between special tokens."""
    return lambda ids, skip, _spaces: tokenizer.decode(ids, skip_special_tokens=skip)


def ask_file(path: Path) -> DecodeAll:
    """For a tokenizer file whose decoder the tables can't express."""
    return ask_backend(Tokenizer.from_file(str(path)))


def ask_python(tokenizer: object) -> DecodeAll:
    """A `transformers` tokenizer, without its clean-up of spaces."""
    known = cast("PythonTokenizer", tokenizer)
    return lambda ids, skip, spaces: known.decode(
        ids, skip_special_tokens=skip, spaces_between_special_tokens=spaces, clean_up_tokenization_spaces=False
    )


def bytes_in_text(decode: DecodeAll, token_id: int) -> bytes:
    """What the id adds after itself: the nearest to mid-text that is known of a decoder that can only be asked."""
    once, twice = decode([token_id], False, False), decode([token_id, token_id], False, False)
    return twice.removeprefix(once).encode() if twice != once and twice.startswith(once) else once.encode()
