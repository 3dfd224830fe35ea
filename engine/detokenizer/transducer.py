"""The compiled vocabulary: states that map a token id to (text, next state), filled in as ids come by.

Never more than `limit` remembered transitions; never state of one request: a request is a pointer to a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Final

from engine.detokenizer.chain import Chain, ChainState
from engine.detokenizer.stages import Token

REMEMBERED_TRANSITIONS: Final = 1 << 18
"""About 180 bytes each: 45 MiB when all are in use, which takes a quarter of a million distinct ones."""
_SHORT_PROMPT: Final = 16
"""Tokens; a prompt up to this long is simply read through."""


class TransducerState(dict[int, "tuple[str, TransducerState]"]):
    """What is pending, and the transitions known from here: `text, state = state[token_id]` is the whole hot path."""

    __slots__ = ("_transducer", "key", "pending")

    def __init__(self, transducer: Transducer, key: ChainState, pending: bool) -> None:
        self._transducer = transducer
        self.key = key
        self.pending = pending

    def __missing__(self, token_id: int) -> tuple[str, TransducerState]:
        if type(token_id) is not int:  # a NumPy or torch scalar, whose hash need not be the number's
            return self[index(token_id)]
        return self._transducer.transition(self, self.key, token_id)

    def finish(self) -> str:
        """The text held back, when no token follows."""
        return self._transducer.chain.finish(self.key)


class Transducer:
    """All states of one vocabulary with one set of hidden ids."""

    def __init__(
        self, chain: Chain, tokens: Mapping[int, Token], hidden: frozenset[int], limit: int = REMEMBERED_TRANSITIONS
    ) -> None:
        self.chain = chain
        self._tokens = tokens
        self._hidden = hidden
        self._limit = limit
        self._remembered = 0
        self._states: dict[ChainState, TransducerState] = {}
        self._initial = self._state(chain.initial)

    def transition(self, state: TransducerState, key: ChainState, token_id: int) -> tuple[str, TransducerState]:
        """Computes a transition from the id's bytes, and remembers it. Unknown and hidden ids add nothing."""
        token = self._visible(token_id)
        result = ("", state) if token is None else self._step(state, key, token)
        self._remember(state, token_id, result)
        return result

    def _step(self, state: TransducerState, key: ChainState, token: Token) -> tuple[str, TransducerState]:
        plain = self.chain.plain_text(token) if key == self.chain.middle else None
        if plain is not None:
            return plain, state
        after, text = self.chain.step(key, token)
        return text, state if after == key else self._state(after)

    def after_prompt(self, prompt: Sequence[int]) -> TransducerState:
        """The state after a prompt, of which only the first visible tokens and the last few are read."""
        state = self._initial
        if len(prompt) <= _SHORT_PROMPT:
            for token_id in prompt:
                state = state[token_id][1]
            return state
        read = 0
        while read < len(prompt) and not self.chain.settled(state.key):
            state = state[prompt[read]][1]
            read += 1
        for token_id in prompt[max(read, self._tail_start(prompt)) :]:
            state = state[token_id][1]
        return state

    def _tail_start(self, prompt: Sequence[int]) -> int:
        """Where the last tokens begin that alone decide what is pending: as many visible ones as the chain asks for."""
        start, wanted = len(prompt), self.chain.tail
        while start and wanted:
            start -= 1
            token = self._visible(index(prompt[start]))
            wanted -= token is not None and len(self.chain.token_bytes(token)) > 0
        return start

    def _visible(self, token_id: int) -> Token | None:
        return None if token_id in self._hidden else self._tokens.get(token_id)

    def _state(self, key: ChainState) -> TransducerState:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = TransducerState(self, key, self.chain.holds_bytes(key))
        return state

    def _remember(self, state: TransducerState, token_id: int, result: tuple[str, TransducerState]) -> None:
        if self._remembered >= self._limit:
            for known in list(self._states.values()):
                known.clear()
            self._remembered = 0
        self._remembered += 1
        state[token_id] = result
