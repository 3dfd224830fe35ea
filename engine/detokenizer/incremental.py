"""One sequence's detokenizer: pushes token ids, gives the text that is certain.

Never a half character, never a word of the prompt, never a revision of what it gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from engine.detokenizer.vocabulary import DecodingState, Vocabulary


class IncrementalDetokenizer:
    """Text of a growing token sequence, in the context of a prompt.

    Holds no more than a pointer to a state. `state` is public for loops over many sequences:
    `text, detokenizer.state = detokenizer.state[token_id]` is `push_token` without the call.
    """

    __slots__ = ("state",)

    state: DecodingState

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        """`spaces_between_special_tokens` concerns only Python ("slow") tokenizers that know such a flag."""
        self.state = vocabulary.start(prompt_token_ids, skip_special_tokens, spaces_between_special_tokens)

    def push(self, token_ids: Sequence[int]) -> str:
        """Takes one step's ids, any number; returns the newly complete text. `RuntimeError` after `finish`."""
        if len(token_ids) == 1:  # one id a step is the common case, and a quarter faster without the loop
            text, self.state = self.state[token_ids[0]]
            return text
        return self._push_all(token_ids)

    def _push_all(self, token_ids: Sequence[int]) -> str:
        state = self.state
        if state is FINISHED:
            FINISHED.refuse()
        text = ""
        for token_id in token_ids:
            piece, state = state[token_id]
            text += piece
        self.state = state
        return text

    def push_token(self, token_id: int) -> str:
        """`push` of one id: the hot path."""
        text, self.state = self.state[token_id]
        return text

    def finish(self) -> str:
        """Ends the sequence: what was held back, an incomplete character as U+FFFD. A second call returns nothing."""
        text = self.state.finish()
        self.state = FINISHED
        return text

    @property
    def pending(self) -> bool:
        """True while an incomplete character is held."""
        return self.state.pending


class _Finished:
    """The state after the end: refuses every id."""

    pending = False

    def __getitem__(self, token_id: int) -> NoReturn:
        self.refuse()

    def refuse(self) -> NoReturn:
        raise RuntimeError("token ids pushed into a finished detokenizer")

    def finish(self) -> str:
        return ""


FINISHED = _Finished()
