"""Following a grammar: answers do not disturb one another, and none may take the engine's time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.grammar import Follower, GrammarCompiler
from engine.types import StructureKind
from tests.engine.grammar.byte_tokens import BYTE_TOKENS, EOS, compiled

MOST_TOKENS = 5_000


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(BYTE_TOKENS)
    yield compiler
    compiler.close()


def allowed(follower: Follower) -> set[int]:
    mask = int.from_bytes(follower.allowed(), "little")
    return {token_id for token_id in range(len(BYTE_TOKENS.tokens)) if mask >> token_id & 1}


def test_followers_of_one_grammar_stand_apart(compiler: GrammarCompiler) -> None:
    """One that goes on, and one that leaves the grammar, leave the others where they are."""
    grammar = compiled(compiler, StructureKind.REGEX, "ab|cd")
    first, second, third = (Follower(grammar) for _ in range(3))
    first.take(ord("a"))
    third.take(ord("z"))
    assert allowed(first) == {ord("b")}
    assert allowed(second) == {ord("a"), ord("c")}
    with pytest.raises(ValueError, match="grammar"):
        third.allowed()
    assert allowed(Follower(grammar)) == {ord("a"), ord("c")}


def test_a_complete_sentence_can_only_end(compiler: GrammarCompiler) -> None:
    """Where it may go on as well, both are allowed."""
    follower = Follower(compiled(compiler, StructureKind.REGEX, "aa?"))
    follower.take(ord("a"))
    assert allowed(follower) == {ord("a"), EOS}
    follower.take(ord("a"))
    assert allowed(follower) == {EOS}


def test_an_ambiguous_grammar_is_given_up_in_time(compiler: GrammarCompiler) -> None:
    """It takes longer with every token; before a token takes noticeable time, that answer fails."""
    follower = Follower(compiled(compiler, StructureKind.GRAMMAR, 'root ::= e\ne ::= e e | "a" | ""\n'))
    with pytest.raises(ValueError, match="grammar"):
        follow(follower, ord("a"))


def follow(follower: Follower, token_id: int) -> None:
    for _ in range(MOST_TOKENS):
        follower.allowed()
        follower.take(token_id)
