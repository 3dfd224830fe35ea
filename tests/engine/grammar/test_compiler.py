"""The compiler: which texts its grammars take, what it refuses, and that nothing brings the process down."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.errors import EngineOverloadedError, InvalidRequestError, UnsupportedParameterError
from engine.grammar import GrammarCompiler, GrammarLimits
from engine.types import Grammar, Structure, StructureKind
from tests.engine.grammar.byte_tokens import BYTE_TOKENS, compiled, is_beginning, is_sentence
from tests.engine.grammar.ten_schemas import SCHEMAS

JSON, REGEX, CHOICE = StructureKind.JSON_SCHEMA, StructureKind.REGEX, StructureKind.CHOICE
EBNF = StructureKind.GRAMMAR
SOON = 20.0
"""Seconds in which a structure is compiled or refused, the process's start on a busy machine included."""


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(BYTE_TOKENS, GrammarLimits(compile_seconds=5.0))
    yield compiler
    compiler.close()


def schema_of(schema: object) -> Structure:
    return Structure(JSON, json.dumps(schema), "field")


@pytest.mark.parametrize(
    ("kind", "text", "sentences", "others"),
    [
        (StructureKind.JSON_OBJECT, "", ["{}", '{"a": [1, {"b": null}], "é": "\\n"}'], ["[]", "1", "{", '{"a": }', ""]),
        (REGEX, "a+b", ["ab", "aaab"], ["b", "xab", "abx", ""]),
        (REGEX, "^a/\"'é\n$", ["a/\"'é\n"], ["a"]),
        (REGEX, "a*", ["", "aa"], ["b"]),
        (CHOICE, '["a", "ab", "\\"\\\\\\n\\u0001é😀\\u2028"]', ["a", "ab", '"\\\n\x01é😀\u2028'], ["b", "abb", ""]),
        (EBNF, 'root ::= item ("," item)*\nitem ::= [0-9]+ | "x"\n', ["1", "12,x,3"], ["", ",", "1,"]),
        (EBNF, 'start: item ("," item)*\nitem: /[0-9]+/ | "x"\n', ["1", "12,x,3"], ["", ",", "1,"]),
        (JSON, "true", ["1", '"x"', "{}", "null"], ["", "nul"]),
        (JSON, '{"properties": {"a": {"type": "integer"}}, "type": "object"}', ["{}", '{"a": 1}'], ['{"b": 1}']),
        (JSON, '{"minimum": 3, "maximum": 5, "type": "integer"}', ["3", "5"], ["2", "6", "33", "4.5"]),
        (JSON, '{"type": "object", "not-a-keyword": 1}', ["{}"], ["1"]),
    ],
)
def test_a_grammar_takes_its_sentences_and_no_other_text(
    compiler: GrammarCompiler, kind: StructureKind, text: str, sentences: list[str], others: list[str]
) -> None:
    """A sentence is the whole answer: nothing before, nothing behind."""
    grammar = compiled(compiler, kind, text)
    assert [one for one in sentences if not is_sentence(grammar, one)] == []
    assert [one for one in others if is_sentence(grammar, one)] == []


def test_json_has_no_room_for_endless_blanks(compiler: GrammarCompiler) -> None:
    """One blank may follow a comma and a colon, and none may come anywhere else."""
    grammar = compiled(compiler, StructureKind.JSON_OBJECT)
    assert is_sentence(grammar, '{"a":1,"b":[1,2]}')
    assert is_sentence(grammar, '{"a": 1, "b": [1, 2]}')
    for text in (" ", "{ ", "{\n", '{"a":  ', '{"a": 1 ', '{"a": 1,  ', '{"a": [ '):
        assert not is_beginning(grammar, text)


def test_the_schema_cannot_loosen_the_rules(compiler: GrammarCompiler) -> None:
    """The library's own switches inside a schema are not obeyed."""
    loose = {"lenient": True, "coerce_one_of": True, "whitespace_flexible": True}
    grammar = compiler.compile(schema_of({"type": "array", "x-guidance": loose}))
    assert not is_beginning(grammar, "[ ")
    with pytest.raises(InvalidRequestError, match="not"):
        compiler.compile(schema_of({"not": {"type": "null"}, "x-guidance": loose}))


UNSUPPORTED: list[dict[str, Any]] = [
    {"not": {}},
    {"if": {}, "then": {}},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "contains": {}},
    {"type": "object", "propertyNames": {"maxLength": 3}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"type": "object", "unevaluatedProperties": False},
    {"type": "string", "format": "banana"},
    {"oneOf": [{"type": "integer"}, {"minimum": 5}]},
]


@pytest.mark.parametrize("schema", UNSUPPORTED, ids=lambda schema: str(list(schema)[-1]))
def test_a_keyword_that_is_not_kept_to_is_refused(compiler: GrammarCompiler, schema: dict[str, Any]) -> None:
    """By its name, also deep inside: never accepted in silence."""
    keyword = "banana" if "format" in schema else list(schema)[-1]
    for whole in (schema, {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, schema]}}}):
        with pytest.raises(InvalidRequestError, match=keyword) as caught:
            compiler.compile(schema_of(whole))
        assert caught.value.param == "field"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *[(REGEX, text) for text in ("", "foo**", "(", "(?<=x)a", "a(?=b)", r"\1", "[z-a]", "a{2}{3}", "\ud800")],
        *[(CHOICE, text) for text in ("", "[]", '[""]', "[1]", '{"a": 1}', "yes", '["\\ud800"]')],
        *[(EBNF, text) for text in ("", "root", 'root ::= "a', "root ::= b", "start: b", "(" * 50_000)],
        *[(JSON, text) for text in ("", "{", "[]", "1", '{"type": "strin"}', '{"properties": {"foo": "bar"}}')],
        (JSON, '{"enum": []}'),
        (JSON, '{"type": "integer", "minimum": 3, "maximum": 2}'),
        (JSON, '{"$ref": "#/$defs/missing"}'),
        (JSON, '{"const": "\\ud800"}'),
        (JSON, '{"$ref": "#"}'),
        (JSON, json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})),
        (StructureKind.JSON_SCHEMA, json.dumps({"const": "x" * 200_000})),
    ],
    ids=lambda value: value[:24].encode("ascii", "backslashreplace").decode(),
)
def test_what_is_no_grammar_is_refused(compiler: GrammarCompiler, kind: StructureKind, text: str) -> None:
    """With the field's name, in words without a place in some other text, and again when it is asked again."""
    messages = set()
    for _ in range(2):
        with pytest.raises(InvalidRequestError) as caught:
            compiled(compiler, kind, text)
        assert caught.value.param == "field"
        messages.add(caught.value.message)
    (message,) = messages
    assert 10 < len(message) < 400
    assert "%llguidance" not in message


@pytest.mark.parametrize(
    "quantified", [r"\*+", "[*+]*", "a*?", "a+?b", "a??", "(?:a*)*", r"\p{L}*", "(?i)a*", "a{2,3}?"]
)
def test_only_a_repeated_repetition_is_one(compiler: GrammarCompiler, quantified: str) -> None:
    """Lazy quantifiers, groups, classes and escapes are what they are."""
    assert isinstance(compiled(compiler, REGEX, quantified), Grammar)


def chain(length: int) -> dict[str, Any]:
    """A schema that refers to the next one, and so on."""
    links: dict[str, Any] = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "integer"}}}


MONSTERS: dict[str, tuple[StructureKind, str]] = {
    "overflows the stack": (JSON, json.dumps(chain(3000))),
    "overflows the stack by rules": (
        EBNF,
        "start: a0\n" + "\n".join(f"a{n}: a{n + 1}" for n in range(9000)) + '\na9000: "x"',
    ),
    "takes all memory": (JSON, json.dumps({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000_000})),
    "takes minutes": (
        JSON,
        json.dumps({"allOf": [{"type": "string", "pattern": f"a.{{{n}}}b.*c"} for n in range(1, 300)]}),
    ),
    "takes many states": (
        JSON,
        json.dumps({"type": "integer", "allOf": [{"multipleOf": n} for n in (7, 11, 13, 17, 19, 23)]}),
    ),
    "doubles": (EBNF, "start: A0\n" + "\n".join(f"A{n}: A{n + 1} A{n + 1}" for n in range(40)) + '\nA40: "x"'),
}


@pytest.mark.parametrize("name", MONSTERS)
def test_a_monster_is_refused_in_bounded_time_and_hurts_nobody(name: str) -> None:
    """It is the client's error, and the next structure compiles as if nothing had been."""
    compiler = GrammarCompiler(BYTE_TOKENS, GrammarLimits(compile_seconds=1.0))
    try:
        compiled(compiler, CHOICE, '["warm"]')
        began = time.monotonic()
        with pytest.raises(InvalidRequestError, match="field: "):
            compiled(compiler, *MONSTERS[name])
        assert time.monotonic() - began < SOON
        assert is_sentence(compiled(compiler, CHOICE, '["yes", "no"]'), "no")
    finally:
        compiler.close()


@pytest.mark.parametrize("pattern", ["(a{1,1000}){1,1000}", "^((a{1,100}){1,100}){1,100}$", "(.*a.{20}){1,20}b"])
def test_a_pattern_of_a_million_states_is_not_expanded(compiler: GrammarCompiler, pattern: str) -> None:
    """It is followed as far as it is used, or refused for what its first steps take."""
    began = time.monotonic()
    try:
        grammar = compiler.compile(schema_of({"type": "string", "pattern": pattern}))
    except InvalidRequestError as refused:
        assert "lexer" in refused.message  # noqa: PT017 - one of two right outcomes
    else:
        assert is_beginning(grammar, '"a')
    assert time.monotonic() - began < SOON


def test_a_huge_enum_is_no_monster(compiler: GrammarCompiler) -> None:
    """Ten thousand values compile."""
    values = [f"v{number}" for number in range(10_000)]
    grammar = compiler.compile(schema_of({"enum": values}))
    assert is_sentence(grammar, '"v9999"')
    assert not is_sentence(grammar, '"v10000"')


def test_a_structure_is_compiled_once(compiler: GrammarCompiler) -> None:
    """However many threads ask for it at a time; what counts is kind and text, not the field that said so."""
    with ThreadPoolExecutor(8) as pool:
        same = list(pool.map(lambda n: compiler.compile(Structure(REGEX, "once+", f"field{n}")), range(32)))
    assert len({id(grammar) for grammar in same}) == 1
    assert compiled(compiler, CHOICE, '["once+"]') is not same[0]


def test_the_cache_is_bounded() -> None:
    """By entries and by bytes; what was asked for last stays longest."""
    compiler = GrammarCompiler(BYTE_TOKENS, GrammarLimits(cached_entries=3))
    try:
        first = compiled(compiler, REGEX, "a0")
        for number in range(1, 6):
            compiled(compiler, REGEX, f"a{number}")
            assert compiled(compiler, REGEX, "a0") is first
        assert len(compiler._cache) == 3
        assert compiler._cached_bytes == sum(entry.cost for entry in compiler._cache.values())
    finally:
        compiler.close()
    small = GrammarCompiler(BYTE_TOKENS, GrammarLimits(cached_bytes=100))
    try:
        grammar = compiled(small, CHOICE, json.dumps(["x" * 200]))
        assert is_sentence(grammar, "x" * 200)
        assert (len(small._cache), small._cached_bytes) == (0, 0)
    finally:
        small.close()


def test_slowness_is_not_remembered() -> None:
    """What a busy machine could not do in time may be done later; a wrong structure stays wrong."""
    compiler = GrammarCompiler(BYTE_TOKENS, GrammarLimits(compile_seconds=0.0))
    try:
        with pytest.raises(InvalidRequestError, match="more than 0 s"):
            compiled(compiler, REGEX, "slow")
        assert not compiler._cache
        compiler._limits = GrammarLimits()
        assert is_sentence(compiled(compiler, REGEX, "slow"), "slow")
    finally:
        compiler.close()


def test_whoever_waits_too_long_is_told_to_come_back() -> None:
    """The time that others' structures take is not this client's fault."""
    compiler = GrammarCompiler(BYTE_TOKENS, GrammarLimits(wait_seconds=0.01))
    with compiler._compile_lock, pytest.raises(EngineOverloadedError):
        compiled(compiler, REGEX, "a")


def test_a_process_that_died_is_started_again(compiler: GrammarCompiler) -> None:
    """Whoever killed it: the structure at hand is not to blame, and compiles."""
    compiled(compiler, REGEX, "before")
    process = compiler._process
    assert process is not None
    assert process._process is not None
    process._process.kill()
    process._process.wait()
    assert is_sentence(compiled(compiler, REGEX, "after"), "after")


def test_a_closed_compiler_leaves_no_process() -> None:
    """Closing is legal at any time, and twice; a later structure starts the process again."""
    compiler = GrammarCompiler(BYTE_TOKENS)
    compiler.close()
    compiled(compiler, REGEX, "a")
    assert compiler._process is not None
    running = compiler._process._process
    assert running is not None
    compiler.close()
    compiler.close()
    assert running.poll() is not None
    assert is_sentence(compiled(compiler, REGEX, "b"), "b")
    compiler.close()


def test_an_unknown_tokenizer_is_refused_by_name() -> None:
    """Where the bytes of tokens are not known, no grammar can hold."""
    with pytest.raises(UnsupportedParameterError, match="field"):
        compiled(GrammarCompiler(None), REGEX, "a")


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_ten_schemas_compile(compiler: GrammarCompiler, name: str) -> None:
    """And sequences of one grammar do not share where they stand."""
    grammar = compiler.compile(schema_of(SCHEMAS[name][1]))
    threads = [threading.Thread(target=is_beginning, args=(grammar, "{")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not is_sentence(grammar, "")
