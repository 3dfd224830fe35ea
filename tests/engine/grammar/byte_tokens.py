"""A vocabulary of single bytes and an end: grammars over it say of any text whether it is a sentence.

Never a model: an id below 256 is that byte.
"""

from __future__ import annotations

from engine.grammar import GrammarCompiler, GrammarTokens
from engine.types import Grammar, Structure, StructureKind

EOS = 256
BYTE_TOKENS = GrammarTokens((*(bytes([byte]) for byte in range(256)), b"<end>"), frozenset({EOS}), (EOS,))


def compiled(compiler: GrammarCompiler, kind: StructureKind, text: str = "") -> Grammar:
    return compiler.compile(Structure(kind, text, "field"))


def is_sentence(grammar: Grammar, text: str) -> bool:
    """Whether the whole text keeps to the grammar, and may end there."""
    matcher = grammar.compiled.deep_copy()
    ids = list(text.encode())
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def is_beginning(grammar: Grammar, text: str) -> bool:
    """Whether a sentence may begin so."""
    ids = list(text.encode())
    return bool(grammar.compiled.deep_copy().try_consume_tokens(ids) == len(ids))
