"""Compiles structures into grammars, each once: a bounded cache before a rehearsal before the compilation itself.

Never on the event loop: `compile` blocks, for milliseconds as a rule and for seconds at worst. Any threads may call it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from llguidance import LLTokenizer

from engine.errors import EngineOverloadedError, InvalidRequestError, UnsupportedParameterError
from engine.grammar.rehearsal import RehearsalProcess
from engine.grammar.schema import StructureError, TooSlowError
from engine.grammar.tokens import GrammarTokens, build_matcher, build_tokenizer
from engine.types import Grammar, Structure, StructureKind

Key: TypeAlias = tuple[StructureKind, str]


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """What one structure may cost, and all that are remembered."""

    text_bytes: int = 128 << 10
    """Of a structure, in UTF-8."""
    compile_seconds: float = 2.0
    """For one structure; what takes longer is refused."""
    wait_seconds: float = 10.0
    """For the structures of others that are compiled before."""
    cached_entries: int = 256
    cached_bytes: int = 256 << 20
    """Texts, and the memory that compiling them took."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A structure's outcome: what it became, or why it is refused."""

    outcome: Grammar | str
    cost: int


class GrammarCompiler:
    """One model's grammars. Refusals are remembered like successes, all but those for the time that they took."""

    def __init__(
        self,
        tokens: GrammarTokens | None,
        limits: GrammarLimits | None = None,
        accept: Callable[[Grammar], None] = lambda _: None,
    ) -> None:
        """`tokens` None: the model's tokenizer does not tell its bytes, and every structure is refused.

        `accept` is the engine's own word on what was compiled: it raises `StructureError` for what it can't follow.
        """
        self._tokens = tokens
        self._limits = limits or GrammarLimits()
        self._accept = accept
        self._cache: OrderedDict[Key, _Entry] = OrderedDict()
        self._cached_bytes = 0
        self._cache_lock = threading.Lock()
        self._compile_lock = threading.Lock()
        self._process = RehearsalProcess(tokens) if tokens else None
        self._tokenizer: LLTokenizer | None = None

    def compile(self, structure: Structure) -> Grammar:
        """The structure's grammar, for an `EngineRequest`.

        `InvalidRequestError` naming `structure.param` for what can't be compiled within the limits;
        `EngineOverloadedError` when too many others are waiting to be compiled.
        """
        if self._tokens is None:
            raise UnsupportedParameterError(structure.param, "the bytes of this model's tokens are not known")
        return self._outcome(structure, self._cached(structure) or self._compile_in_turn(structure))

    def remembered(self, structure: Structure) -> Grammar | None:
        """The grammar of a structure that was compiled lately; never blocks. `InvalidRequestError` as of `compile`."""
        entry = self._cached(structure)
        return None if entry is None else self._outcome(structure, entry)

    def _outcome(self, structure: Structure, entry: _Entry) -> Grammar:
        if isinstance(entry.outcome, str):
            raise InvalidRequestError(f"{structure.param}: {entry.outcome}", param=structure.param)
        return entry.outcome

    def close(self) -> None:
        """Ends the process that tries grammars out, after what it is at; the next structure starts it again."""
        if self._process is not None:
            with self._compile_lock:
                self._process.close()

    def _cached(self, structure: Structure) -> _Entry | None:
        key = (structure.kind, structure.text)
        with self._cache_lock:
            entry = self._cache.get(key)
            if entry is not None:
                self._cache.move_to_end(key)
        return entry

    def _remember(self, structure: Structure, entry: _Entry) -> _Entry:
        with self._cache_lock:
            self._cache[structure.kind, structure.text] = entry
            self._cached_bytes += entry.cost
            while len(self._cache) > self._limits.cached_entries or self._cached_bytes > self._limits.cached_bytes:
                _, oldest = self._cache.popitem(last=False)
                self._cached_bytes -= oldest.cost
        return entry

    def _compile_in_turn(self, structure: Structure) -> _Entry:
        """Behind all that came before; whoever waited for the same structure finds it done."""
        size = len(structure.text.encode("utf-8", "surrogatepass"))
        if size > self._limits.text_bytes:
            return _Entry(f"it has {size} bytes, at most {self._limits.text_bytes} are compiled", 0)
        if not self._compile_lock.acquire(timeout=self._limits.wait_seconds):
            raise EngineOverloadedError("too many grammars are waiting to be compiled", retry_after=5.0)
        try:
            return self._cached(structure) or self._compile(structure, size)
        finally:
            self._compile_lock.release()

    def _compile(self, structure: Structure, size: int) -> _Entry:
        assert self._process is not None  # noqa: S101 - `compile` refused before
        try:
            rehearsed = self._process.rehearse(structure, self._limits.compile_seconds)
        except TooSlowError as refused:  # not remembered: next time the machine may be less busy
            return _Entry(str(refused), size)
        except StructureError as refused:
            return self._remember(structure, _Entry(str(refused), size))
        matcher = build_matcher(self._own_tokenizer(), rehearsed.grammar)
        if matcher.is_error():
            return _Entry(matcher.get_error(), size)
        grammar = Grammar(structure, matcher, rehearsed.grammar)
        try:
            self._accept(grammar)
        except StructureError as refused:
            return self._remember(structure, _Entry(str(refused), size))
        return self._remember(structure, _Entry(grammar, 2 * size + rehearsed.memory_bytes))

    def _own_tokenizer(self) -> LLTokenizer:
        assert self._tokens is not None  # noqa: S101 - `compile` refused before
        if self._tokenizer is None:
            self._tokenizer = build_tokenizer(self._tokens)
        return self._tokenizer
