"""Hypothesis strategies for token ids and for ways to cut them.

Never only likely ids: parts of characters, added and special tokens, ids that no one knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st

from tests import vocabularies
from tests.engine.detokenizer.samples import TEXTS

T = TypeVar("T")
quick = settings(deadline=None, max_examples=80)
"""For tests in every run; `fuzz.py` runs as long as it is told. No deadline: the first example loads a tokenizer."""


@cache
def broken_ids(name: str) -> list[int]:
    """Ids whose bytes alone are no valid text."""
    vocabulary = vocabularies.vocabulary(name)
    return [token_id for token_id in range(vocabulary.size) if not _is_text(vocabulary.token_bytes(token_id))]


@cache
def added_ids(name: str) -> list[int]:
    """Ids of added tokens, special or not, a few hundred at most."""
    return sorted(vocabularies.tokenizer(name).get_added_tokens_decoder())[:300]


@cache
def text_ids(name: str) -> list[list[int]]:
    """The sample texts' ids, without special tokens."""
    return [encoded(name, text) for text in TEXTS]


def encoded(name: str, text: str) -> list[int]:
    """A text's ids, without special tokens."""
    ids: list[int] = vocabularies.tokenizer(name).encode(text, add_special_tokens=False).ids
    return ids


@cache
def token_ids(name: str) -> st.SearchStrategy[list[int]]:
    """Up to about sixty ids: runs of one kind and of another."""
    size = vocabularies.vocabulary(name).size
    kinds: list[st.SearchStrategy[list[int]]] = [
        st.lists(st.integers(-3, size + 300), max_size=6),
        st.lists(st.sampled_from(broken_ids(name)), max_size=8),
        st.lists(st.sampled_from(added_ids(name)), max_size=4),
        st.builds(_slice, st.sampled_from(text_ids(name)), st.integers(0, 60), st.integers(1, 12)),
    ]
    return st.lists(st.one_of(kinds), max_size=8).map(lambda runs: [token_id for run in runs for token_id in run])


def cut(items: Sequence[T], sizes: Sequence[int]) -> list[Sequence[T]]:
    """The items in groups of these sizes, in turn, over and over."""
    groups: list[Sequence[T]] = []
    start, turn = 0, 0
    while start < len(items):
        size = sizes[turn % len(sizes)]
        groups.append(items[start : start + size])
        start, turn = start + size, turn + 1
    return groups


SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=5)


def _slice(ids: list[int], start: int, length: int) -> list[int]:
    return ids[start : start + length]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
