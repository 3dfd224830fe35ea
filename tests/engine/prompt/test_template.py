"""The sandboxed template: what templates may call, what they may not, and that nothing but one error comes out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from engine.errors import InvalidRequestError, ModelLoadError
from engine.prompt.template import MAX_PROMPT_CHARACTERS, ChatTemplate


def render(source: str, **variables: Any) -> str:
    """One rendering, on the first day of 2024."""
    return ChatTemplate(source, lambda: datetime(2024, 1, 1, tzinfo=UTC)).render(variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  a\n{% endif %}\nb", "  a\nb"),
        ("  {% set x = 1 %}\nb", "b"),
        ("{{ {'k': '<é>&'} | tojson }}", '{"k": "<é>&"}'),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}", '{\n "a": [\n  2\n ],\n "b": 1\n}'),
        ("{{ {'a': 1} | tojson(separators=(',', ':')) }}", '{"a":1}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ strftime_now('%d %b %Y') }}", "01 Jan 2024"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ missing }}|{{ given.missing }}", "|"),
        ("{% set ns = namespace(n=1) %}{% for i in [1, 2] %}{% set ns.n = ns.n * 3 %}{% endfor %}{{ ns.n }}", "9"),
        ("{{ '-' * 3 }}{{ 3 * '=' }}{{ 2 ** 10 }}{{ [1] * 2 }}{{ 1.5 * 2 }}", "---===1024[1, 1]3.0"),
    ],
)
def test_renders(source: str, expected: str) -> None:
    """Whitespace rules, filters, functions and tags are those that chat templates are written for."""
    assert render(source, given={}) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ text + none }}",
        "{{ missing.attribute }}",
        "{{ text() }}",
        "{{ 1 / 0 }}",
        "{{ entries[0].x.y }}",
        "{{ entries.append(1) }}",
        "{{ text.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ undefined_function() }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% include 'secrets' %}",
        "{{ strftime_now(1) }}",
    ],
)
def test_failures_are_the_requests(source: str) -> None:
    """Refusals, type errors, undefined values, sandbox breaches and endless recursion all come out as one error."""
    with pytest.raises(InvalidRequestError):
        render(source, text="a", entries=[])


def test_refusal_keeps_the_templates_words() -> None:
    """A client reads what the model's template has against its conversation."""
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        ("{% for i in range(n) %}{% endfor %}", {"n": 10**9}),
        ("{{ 'a' * n }}", {"n": 10**9}),
        ("{{ n * 'a' }}", {"n": 10**9}),
        ("{{ ['a'] * n }}", {"n": 10**9}),
        ("{{ n ** n }}", {"n": 10**6}),
        ("{{ n * n }}", {"n": 10**100_000}),
        ("{% for i in range(99999) %}{{ text }}{% endfor %}", {"text": "a" * (MAX_PROMPT_CHARACTERS // 100)}),
    ],
)
def test_runaways_are_stopped(source: str, variables: dict[str, Any]) -> None:
    """A client's number or text can't make a template fill the memory or run for long."""
    with pytest.raises(InvalidRequestError):
        render(source, **variables)


@pytest.mark.parametrize("source", ["{% if %}", "{{ a", "{% nonsense %}", "{{ a | no_such_filter }}"])
def test_broken_template_fails_at_load(source: str) -> None:
    """A template that can't be compiled is the operator's to mend, at start."""
    with pytest.raises(ModelLoadError):
        render(source)


def test_variables_are_not_kept() -> None:
    """A rendering leaves nothing behind for the next."""
    template = ChatTemplate("{{ a }}{% set a = 2 %}{{ a }}", datetime.now)
    assert [template.render({"a": 1}), template.render({})] == ["12", "2"]
