"""Structured output inside vLLM's engine process: its guidance backend, bounded, and each grammar compiled once.

Never a grammar of its own: what comes here was found good by the server's rehearsal, in llguidance's language. vLLM's
own backend compiles anew for every sequence, bounds no step, and ends an answer that has left its grammar as if it
were complete.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any

from llguidance import LLMatcher
from vllm.v1.structured_output.backend_guidance import GuidanceBackend, GuidanceGrammar, serialize_guidance_grammar

from engine.grammar.follower import STEP_SECONDS
from engine.grammar.tokens import build_matcher

REMEMBERED = 32
"""Compiled grammars; one takes some kilobytes as a rule, and at worst what a rehearsal may take."""


class StrictGrammar(GuidanceGrammar):  # type: ignore[misc]
    """One answer's place in its grammar, held to the same bound of time as by the engine that follows them itself."""

    slowest_mask = 0.0
    """Seconds of processor time; all other sequences wait meanwhile."""

    def fill_bitmask(self, bitmask: Any, idx: int) -> None:
        began = time.thread_time()
        super().fill_bitmask(bitmask, idx)
        self.slowest_mask = max(self.slowest_mask, time.thread_time() - began)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """False fails the sequence, also where the grammar became too complex to follow: nothing else tells of that."""
        followed = self.slowest_mask <= STEP_SECONDS and not self.ll_matcher.is_error()
        return followed and super().accept_tokens(request_id, tokens)


class SharedGuidance(GuidanceBackend):  # type: ignore[misc]
    """vLLM's backend for one engine. Its threads compile, one of them at a time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def compile_grammar(self, request_type: Any, grammar_spec: str, stop_token_ids: Any = None) -> StrictGrammar:
        """`ValueError`, which ends that one sequence, for what does not compile after all."""
        grammar = serialize_guidance_grammar(request_type, grammar_spec)
        with self._lock:
            matcher = self._compiled.get(grammar) or self._compile(grammar)
            self._compiled.move_to_end(grammar)
        return StrictGrammar(matcher.deep_copy(), self.ll_tokenizer, self.vocab_size)

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = build_matcher(self.ll_tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        self._compiled[grammar] = matcher
        if len(self._compiled) > REMEMBERED:
            self._compiled.popitem(last=False)
        return matcher


def share_grammars(manager: Any) -> None:
    """Gives vLLM's `StructuredOutputManager` this backend, where the model's tokenizer allows it."""
    config = manager.vllm_config
    if not config.model_config.skip_tokenizer_init and GuidanceBackend.is_tokenizer_supported(manager.tokenizer):
        manager.backend = SharedGuidance(config, manager.tokenizer, config.model_config.get_vocab_size())
