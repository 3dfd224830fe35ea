"""vLLM's guidance backend as this project bounds it, without an engine: compiled once, failed where it fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.errors import ConfigError
from engine.grammar.lowering import lower
from engine.grammar.tokens import build_matcher
from engine.types import StructureKind


@pytest.fixture(scope="module")
def guidance(demo_model: Path) -> Any:
    """The backend for the demo model's tokenizer."""
    from transformers import AutoTokenizer

    from engine.backends.vllm.grammars import SharedGuidance

    chosen = SimpleNamespace(disable_any_whitespace=False, disable_additional_properties=False)
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    return SharedGuidance(SimpleNamespace(structured_outputs_config=chosen), tokenizer, len(tokenizer))


def compiled(guidance: Any, pattern: str) -> Any:
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    return guidance.compile_grammar(StructuredOutputOptions.GRAMMAR, lower(StructureKind.REGEX, pattern))


def test_each_grammar_is_compiled_once(guidance: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sequences follow it; each has a place of its own in it."""
    from engine.backends.vllm import grammars

    built: list[str] = []

    def build(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
        built.append(grammar)
        return build_matcher(tokenizer, grammar)

    monkeypatch.setattr(grammars, "build_matcher", build)
    tokens = guidance.tokenizer.encode("aaaa", add_special_tokens=False)
    first, second = compiled(guidance, "a{4}"), compiled(guidance, "a{4}")
    assert len(built) == 1
    assert first.accept_tokens("r", tokens)
    assert second.validate_tokens(tokens) == tokens
    for number in range(grammars.REMEMBERED + 1):
        compiled(guidance, f"b{{{number + 1}}}")
    assert len(guidance._compiled) == grammars.REMEMBERED


def test_an_answer_that_left_its_grammar_fails(guidance: Any) -> None:
    """Also with the end of the sequence, the one token that a failed grammar still allows."""
    tokenizer = guidance.tokenizer
    grammar = compiled(guidance, "a+")
    assert not grammar.accept_tokens("r", tokenizer.encode("zebra", add_special_tokens=False))
    assert not grammar.accept_tokens("r", [tokenizer.eos_token_id])
    whole = compiled(guidance, "a+")
    assert whole.accept_tokens("r", [*tokenizer.encode("a", add_special_tokens=False), tokenizer.eos_token_id])


def test_an_answer_that_takes_too_long_fails(guidance: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token's mask has a bound, since all other sequences wait for it; the sequence alone is failed."""
    from engine.backends.vllm import grammars

    tokens = guidance.tokenizer.encode("a", add_special_tokens=False)
    grammar = compiled(guidance, "a+")
    mask = guidance.allocate_token_bitmask(1)
    grammar.fill_bitmask(mask, 0)
    assert grammar.accept_tokens("r", tokens)
    monkeypatch.setattr(grammars, "STEP_SECONDS", 0.0)
    grammar.fill_bitmask(mask, 0)
    assert not grammar.accept_tokens("r", tokens)
    assert compiled(guidance, "a+").accept_tokens("r", tokens)


@pytest.mark.parametrize("grammar", ["start: /(/", "start: missing", "nothing"])
def test_what_does_not_compile_is_an_error(guidance: Any, grammar: str) -> None:
    """Raised where vLLM would only log it and let the answer end at once."""
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    with pytest.raises(ValueError, match=r".+"):
        guidance.compile_grammar(StructuredOutputOptions.GRAMMAR, grammar)


@pytest.mark.parametrize("backend", ["xgrammar", "outlines", "lm-format-enforcer"])
def test_no_other_backend_can_be_chosen(demo_model: Path, backend: str) -> None:
    """What the server tried out is what vLLM compiles; `auto` is that."""
    from engine.backends.vllm.arguments import engine_arguments
    from engine.backends.vllm.launch import engine_config
    from engine.config import EngineConfig

    def config(name: str) -> Any:
        vllm = {"structured_outputs_config": {"backend": name}, "enforce_eager": True}
        return engine_config(engine_arguments(EngineConfig(kind="vllm", vllm=vllm), demo_model))

    with pytest.raises(ConfigError, match="structured_outputs_config: backend"):
        config(backend)
    assert config("auto").structured_outputs_config.backend == "guidance"
