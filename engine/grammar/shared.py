"""An engine's one compiler of structures, made when the first structure comes: most servers are never asked for one.

Never a second one: the cache and the process that tries grammars out are for all requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from engine.detokenizer import Vocabulary
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.tokens import GrammarTokens
from engine.types import Grammar, ModelLimits, Structure


class SharedCompiler:
    """`GrammarCompiler` for one engine. Any threads may call it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        limits: Callable[[], ModelLimits],
        accept: Callable[[Grammar], None] = lambda _: None,
    ) -> None:
        """`limits`: the model's, asked once, after the engine was started. `accept`: see `GrammarCompiler`."""
        self._vocabulary = vocabulary
        self._limits = limits
        self._accept = accept
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None

    def compile(self, structure: Structure) -> Grammar:
        """See `GrammarCompiler.compile`; the first call takes a second or two longer."""
        with self._lock:
            if self._compiler is None:
                tokens = GrammarTokens.of_model(self._vocabulary, self._limits())
                self._compiler = GrammarCompiler(tokens, accept=self._accept)
        return self._compiler.compile(structure)

    def remembered(self, structure: Structure) -> Grammar | None:
        """See `GrammarCompiler.remembered`; never blocks."""
        compiler = self._compiler
        return None if compiler is None else compiler.remembered(structure)

    def close(self) -> None:
        """See `GrammarCompiler.close`. Legal when nothing was compiled, and twice."""
        if self._compiler is not None:
            self._compiler.close()
