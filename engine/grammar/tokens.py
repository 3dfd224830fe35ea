"""What grammars have to know of a tokenizer, and llguidance's own form of it.

The bytes are the detokenizer's, so that the text which a grammar allows is the text that leaves, for every tokenizer
that the detokenizer knows byte by byte. Never tokenizes: the grammars force no tokenization, the model chooses it.
"""

from __future__ import annotations

from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from engine.detokenizer import Vocabulary
from engine.types import ModelLimits

PARSER_LIMITS = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
}
"""What a grammar may cost by llguidance's own measures. A step's bounds are some 15 ms of work; a lexer state takes one
or two kilobytes. A step within them takes 10 to 100 microseconds."""


@dataclass(frozen=True, slots=True)
class GrammarTokens:
    """A vocabulary as grammars see it."""

    tokens: tuple[bytes, ...]
    """The bytes of each id; none for ids that stand for nothing, which no grammar allows."""
    special_ids: frozenset[int]
    """Control tokens: what they are spelled like is no text."""
    eos_ids: tuple[int, ...]
    """What ends an answer, all of them equally; at least one."""

    @classmethod
    def of_model(cls, vocabulary: Vocabulary, limits: ModelLimits) -> GrammarTokens | None:
        """One row for each of the model's head; None where the decoder is not known byte by byte, or nothing ends."""
        if not vocabulary.exact_bytes or not limits.eos_token_ids:
            return None
        size = max(vocabulary.size, limits.vocab_size)
        tokens = tuple(vocabulary.token_bytes(token_id) for token_id in range(size))
        return cls(tokens, frozenset(vocabulary.special_ids), tuple(sorted(limits.eos_token_ids)))


class _Source:
    """What llguidance reads a tokenizer's table from."""

    bos_token_id = None

    def __init__(self, table: GrammarTokens) -> None:
        self.eos_token_id = table.eos_ids[0]
        self.tokens = list(table.tokens)
        self.special_token_ids = sorted(table.special_ids | set(table.eos_ids))

    def __call__(self, text: bytes) -> list[int]:
        """Asked once, to see that bytes are taken; forced text, which would be tokenized, is switched off."""
        return []


def build_tokenizer(table: GrammarTokens) -> LLTokenizer:
    """Takes a fifth of a second for 50,000 tokens."""
    return LLTokenizer(TokenizerWrapper(_Source(table)), eos_token=list(table.eos_ids))


def build_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the beginning, its first mask computed. What is wrong with the grammar is in `get_error()`.

    Runs without the interpreter's lock, and may take the process with it: only for what `rehearsal` found good.
    """
    limits = LLParserLimits(verbose_errors=False, **PARSER_LIMITS)
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher
