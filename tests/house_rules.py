"""The rooms' rules as functions from parsed source files to violations: who imports whom, and how big things get.

Never imports what it checks: it reads syntax trees, so an import inside a function or for types only counts as well.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOTS = ("engine", "server", "client")
PURE_ROOMS = (
    "engine.types",
    "engine.errors",
    "engine.prompt",
    "engine.detokenizer",
    "engine.output",
    "server.wire",
    "server.lifecycle",
)
IMPURE_LIBRARIES = ("asyncio", "fastapi", "starlette", "vllm", "torch", "logging", "time")
WIRE_MAY_TAKE = ("engine.types", "engine.errors", "engine.prompt", "engine.output")
CONFINED_LIBRARIES = {
    "vllm": ("engine.backends.vllm",),
    "torch": ("engine.backends.transformers", "engine.model"),
    "prometheus_client": ("server.metrics",),
}
"""Library: the rooms that may import it. `engine.model` loads the weights."""
DIALECTS = tuple(f"server.wire.{name}" for name in ("chat_completions", "completions", "responses", "messages"))
EMPTY_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 5

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Source:
    """One parsed file."""

    path: str
    """Relative to the repository, with forward slashes."""
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """Dotted name; a package's `__init__.py` bears the package's."""
        return self.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

    def violation(self, node: ast.AST | None, message: str) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {message}"


Rule: TypeAlias = Callable[[Sequence[Source]], Iterator[str]]


def parse(path: str, text: str) -> Source:
    return Source(path, text, ast.parse(text, filename=path))


def read_sources(repository: Path, roots: Sequence[str] = ROOTS) -> list[Source]:
    """Every Python file under these folders, in a fixed order."""
    files = sorted(file for root in roots for file in (repository / root).rglob("*.py"))
    return [parse(file.relative_to(repository).as_posix(), file.read_text(encoding="utf-8")) for file in files]


def within(module: str, rooms: Iterable[str]) -> bool:
    """Whether the dotted name is one of the rooms or lies in one."""
    return any(module == room or module.startswith(room + ".") for room in rooms)


def imports(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """Every import anywhere in the file as (statement, dotted name). `from a import b` gives `a.b`, a module or not."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(source, node)
            yield from ((node, f"{base}.{alias.name}" if alias.name != "*" else base) for alias in node.names)


def absolute_base(source: Source, node: ast.ImportFrom) -> str:
    """The module that a `from ... import` names, a relative one made absolute."""
    if node.level == 0:
        return node.module or ""
    package = source.module.split(".")
    kept = len(package) - node.level + source.path.endswith("__init__.py")
    return ".".join([*package[:kept], *filter(None, [node.module])])


def functions(source: Source) -> Iterator[tuple[Function, bool]]:
    """Every function, and whether its first parameter is `self` or `cls`."""
    for parent in ast.walk(source.tree):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, Function):
                yield node, isinstance(parent, ast.ClassDef) and not decorated_with(node, "staticmethod")


def decorated_with(function: Function, *names: str) -> bool:
    """Whether a decorator is, or calls, something whose last name is one of these: `@command`, `@app.command()`."""
    bare = (d.func if isinstance(d, ast.Call) else d for d in function.decorator_list)
    return any(last_name(node) in names for node in bare)


def last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def docstrings(tree: ast.Module) -> set[int]:
    """The identities of the constants that stand alone as statements: prose, never sent."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def engine_knows_no_server(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        for node, name in imports(source):
            if within(source.module, ["engine"]) and within(name, ["server", "client"]):
                yield source.violation(node, f"engine imports {name}")


def wire_takes_only_nouns(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        for node, name in imports(source):
            if within(source.module, ["server.wire"]) and within(name, ["engine"]) and not within(name, WIRE_MAY_TAKE):
                yield source.violation(node, f"server/wire imports {name}; it may take {', '.join(WIRE_MAY_TAKE)}")


def pure_rooms_stay_pure(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        for node, name in imports(source):
            if within(source.module, PURE_ROOMS) and within(name, IMPURE_LIBRARIES):
                yield source.violation(node, f"a pure room imports {name}")


def libraries_stay_in_their_rooms(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        for node, name in imports(source):
            rooms = CONFINED_LIBRARIES.get(name.partition(".")[0])
            if rooms and not within(source.module, rooms):
                yield source.violation(node, f"imports {name}, which only {', '.join(rooms)} may")


def environment_is_read_in_config(sources: Sequence[Source]) -> Iterator[str]:
    reading = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"}
    for source in sources:
        if source.path.endswith("/config.py"):
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and f"{last_name(node.value)}.{node.attr}" in reading:
                yield source.violation(node, f"reads the environment ({ast.unparse(node)}); only a config.py may")
        for statement, name in imports(source):
            if name in reading:
                yield source.violation(statement, f"imports {name}; only a config.py may")


def frames_are_written_in_sse(sources: Sequence[Source]) -> Iterator[str]:
    """In the server; a client reads frames, and so names the field too."""
    for source in sources:
        if not within(source.module, ["server"]) or within(source.module, ["server.wire.sse"]):
            continue
        prose = docstrings(source.tree)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Constant) and id(node) not in prose and starts_data_line(node.value):
                yield source.violation(node, f"writes an SSE field ({node.value!r}); only server/wire/sse may")


def starts_data_line(value: object) -> bool:
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    return isinstance(text, str) and any(line.startswith("data:") for line in text.splitlines())


def asgi_is_called_in_delivery(sources: Sequence[Source]) -> Iterator[str]:
    channel = {"send", "receive", "self.send", "self.receive", "self._send", "self._receive"}
    for source in sources:
        if not within(source.module, ["server"]) or source.module.startswith("server.delivery"):
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in channel:
                yield source.violation(node, f"calls ASGI's {ast.unparse(node.func)}(...); only server/delivery may")


def dialects_stand_alone(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        others = [dialect for dialect in DIALECTS if not within(source.module, [dialect])]
        for node, name in imports(source):
            if len(others) < len(DIALECTS) and within(name, others):
                yield source.violation(node, f"a dialect imports another's {name}")


def imports_run_in_no_circle(sources: Sequence[Source]) -> Iterator[str]:
    modules = {source.module for source in sources}
    graph = {
        source.module: {nearest_module(name, modules) for _, name in imports(source)} - {source.module, ""}
        for source in sources
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as circle:
        yield "import circle: " + " is imported by ".join(circle.args[1])


def nearest_module(name: str, modules: set[str]) -> str:
    """The longest beginning of a dotted name that is one of our modules; "" where it is a library's."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def names_say_something(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        if empty := EMPTY_NAMES.intersection(part.strip("_") for part in source.module.split(".")):
            yield source.violation(None, f"a room named {', '.join(empty)} says nothing of what it holds")


def files_introduce_themselves(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        if not (ast.get_docstring(source.tree) or "").strip():
            yield source.violation(None, "no docstring says what this file is and what it never does")


def files_are_short(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        lines = source.text.count("\n")
        if lines > MAX_FILE_LINES:
            yield source.violation(None, f"{lines} lines, at most {MAX_FILE_LINES}")


def functions_are_short(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        for function, _ in functions(source):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield source.violation(function, f"{function.name} has {lines} lines, at most {MAX_FUNCTION_LINES}")


def functions_take_few_parameters(sources: Sequence[Source]) -> Iterator[str]:
    """Named parameters, `self` and `cls` apart. Exempt is a signature that a library dictates."""
    for source in sources:
        for function, is_method in functions(source):
            taken = function.args
            count = len([*taken.posonlyargs, *taken.args, *taken.kwonlyargs]) - is_method
            if count > MAX_PARAMETERS and not signature_is_dictated(source, function):
                yield source.violation(function, f"{function.name} has {count} parameters, at most {MAX_PARAMETERS}")


def signature_is_dictated(source: Source, function: Function) -> bool:
    """A typer command's parameters are its options; elsewhere a `noqa: PLR0913` in the signature gives the reason."""
    signature = source.text.splitlines()[function.lineno - 1 : function.body[0].lineno]
    return decorated_with(function, "command", "callback") or any("noqa: PLR0913" in line for line in signature)


def tests_state_their_invariant(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        for function, _ in functions(source):
            if function.name.startswith("test_") and not ast.get_docstring(function):
                yield source.violation(function, f"{function.name} has no docstring that states what must hold")
