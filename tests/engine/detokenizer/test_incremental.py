"""A detokenizer's life: what it reads of a prompt, its end, the kinds of numbers that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import pytest

from engine.detokenizer import IncrementalDetokenizer
from tests import vocabularies
from tests.engine.detokenizer.strategies import encoded


class CountedPrompt(Sequence[int]):
    """A prompt that counts how many of its ids were read."""

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids
        self.reads = 0

    def __len__(self) -> int:
        return len(self._token_ids)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            self.reads += len(self._token_ids[at])
            return self._token_ids[at]
        self.reads += 1
        return self._token_ids[at]

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the whole prompt is read")


@pytest.mark.parametrize("name", vocabularies.NAMES)
def test_only_the_ends_of_a_prompt_are_read(name: str) -> None:
    """A prompt of a hundred thousand ids costs a few look-ups, and its first and last ids count as ever."""
    ids = encoded(name, "word " * 25_000 + "𒀀")
    prompt = CountedPrompt(ids[:-1])
    detokenizer = IncrementalDetokenizer(vocabularies.vocabulary(name), prompt)
    assert prompt.reads < 20
    assert detokenizer.push(ids[-1:]) == "𒀀"


def test_prompt_of_hidden_ids_is_still_a_start() -> None:
    """A long prompt of skipped tokens leaves the output at the start of the text, where a leading space is dropped."""
    vocabulary = vocabularies.vocabulary("llama2")
    ids = encoded("llama2", "I am")
    assert IncrementalDetokenizer(vocabulary, [1] * 100).push(ids) == "I am"
    assert IncrementalDetokenizer(vocabulary, [1] * 100, skip_special_tokens=False).push(ids) == " I am"


@pytest.mark.parametrize("name", ["llama2", "smollm2", "gemma3"])
@pytest.mark.parametrize("invisible", [1, -1, 10**6])
def test_invisible_ids_in_a_long_prompt(name: str, invisible: int) -> None:
    """However many skipped or unknown ids stand before the first visible one and after the last, none counts."""
    vocabulary = vocabularies.vocabulary(name)
    ids = encoded(name, "I am 𒀀𒁀")
    for at in range(len(ids) + 1):
        spread = [each for token_id in ids[:at] for each in [*[invisible] * 40, token_id]] + [invisible] * 40
        plain, padded = IncrementalDetokenizer(vocabulary, ids[:at]), IncrementalDetokenizer(vocabulary, spread)
        assert padded.state is plain.state
        assert padded.push(ids[at:]) == plain.push(ids[at:])


def test_finish_ends_it() -> None:
    """After `finish` every push raises, also an empty one; a second `finish` gives nothing."""
    vocabulary = vocabularies.vocabulary("smollm2")
    detokenizer = IncrementalDetokenizer(vocabulary)
    assert (detokenizer.push(encoded("smollm2", "𠮷")[:1]), detokenizer.pending) == ("", True)
    assert (detokenizer.finish(), detokenizer.pending) == ("\ufffd", False)
    assert detokenizer.finish() == ""
    for ids in ([], [5], [5, 6]):
        with pytest.raises(RuntimeError, match="finished"):
            detokenizer.push(ids)
    with pytest.raises(RuntimeError, match="finished"):
        detokenizer.push_token(5)


def test_nothing_in_nothing_out() -> None:
    """A sequence without ids has no text, and an empty push changes nothing."""
    detokenizer = IncrementalDetokenizer(vocabularies.vocabulary("gemma3"))
    assert detokenizer.push([]) == ""
    assert detokenizer.finish() == ""


class Scalar:
    """An integer as array libraries have them: one by `__index__`, with a hash of its own."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


def test_integers_of_other_libraries() -> None:
    """Scalars that are integers by `__index__` are ids like any other; what is no integer raises."""
    vocabulary = vocabularies.vocabulary("smollm2")
    ids = encoded("smollm2", "one two")
    scalars: list[int] = [Scalar(token_id) for token_id in ids]  # type: ignore[misc]
    assert IncrementalDetokenizer(vocabulary, scalars).push(scalars) == "one two"
    with pytest.raises(TypeError):
        IncrementalDetokenizer(vocabulary).push(["5"])  # type: ignore[list-item]


def test_sequences_share_states() -> None:
    """Two sequences at the same point are at the same state: nothing of a request is kept but a pointer."""
    vocabulary = vocabularies.vocabulary("qwen3")
    first, second = IncrementalDetokenizer(vocabulary), IncrementalDetokenizer(vocabulary, encoded("qwen3", "a b c"))
    first.push(encoded("qwen3", "something else"))
    assert first.state is second.state
