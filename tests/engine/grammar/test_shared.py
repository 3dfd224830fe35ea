"""An engine's compiler: made when it is first needed, the same for all, and closed with the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.detokenizer import Vocabulary
from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.grammar.shared import SharedCompiler
from engine.tokenizer import Tokenizer
from engine.types import ModelLimits, Structure, StructureKind

LETTERS = Structure(StructureKind.REGEX, "[a-z]+", "guided_regex")
BROKEN = Structure(StructureKind.REGEX, "(", "guided_regex")


@pytest.fixture(scope="module")
def vocabulary(demo_model: Path) -> Vocabulary:
    return Vocabulary.from_tokenizer(Tokenizer.from_folder(demo_model).backend)


@pytest.fixture
def compiler(vocabulary: Vocabulary) -> Iterator[SharedCompiler]:
    compiler = SharedCompiler(vocabulary, lambda: ModelLimits(8_192, 49_152, frozenset({2})))
    yield compiler
    compiler.close()


def test_what_was_compiled_is_remembered(compiler: SharedCompiler) -> None:
    """Grammars and refusals alike, whatever field asks for them; also after the process was ended."""
    assert compiler.remembered(LETTERS) is None
    grammar = compiler.compile(LETTERS)
    assert compiler.remembered(LETTERS) is grammar
    with pytest.raises(InvalidRequestError):
        compiler.compile(BROKEN)
    compiler.close()
    compiler.close()
    assert compiler.compile(LETTERS) is grammar
    with pytest.raises(InvalidRequestError) as refused:
        compiler.remembered(Structure(BROKEN.kind, BROKEN.text, "structured_outputs.regex"))
    assert refused.value.param == "structured_outputs.regex"


def test_a_compiler_that_nobody_asked(vocabulary: Vocabulary) -> None:
    """It costs nothing: the model's limits, which are not known before it is loaded, are not asked for."""

    def limits() -> ModelLimits:
        raise AssertionError("asked before there was a structure")

    compiler = SharedCompiler(vocabulary, limits)
    assert compiler.remembered(LETTERS) is None
    compiler.close()


def test_a_model_whose_tokens_have_no_known_bytes(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """No grammar can be followed: each structure is refused by the client's field."""
    monkeypatch.setattr(vocabulary, "exact_bytes", False)
    compiler = SharedCompiler(vocabulary, lambda: ModelLimits(8_192, 49_152, frozenset({2})))
    with pytest.raises(UnsupportedParameterError) as refused:
        compiler.compile(LETTERS)
    assert refused.value.param == "guided_regex"
