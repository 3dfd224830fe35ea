"""Structured output: what a client says an answer looks like, compiled into a grammar that masks tokens.

Never samples and never sees logits: a backend asks the grammar which tokens can come next.
"""

from engine.grammar.calls import CallForm, call_structure
from engine.grammar.compiler import GrammarCompiler, GrammarLimits
from engine.grammar.follower import Follower
from engine.grammar.tokens import GrammarTokens

__all__ = ["CallForm", "Follower", "GrammarCompiler", "GrammarLimits", "GrammarTokens", "call_structure"]
