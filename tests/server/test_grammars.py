"""Structures are compiled beside the event loop: new ones wait in turn, remembered ones do not, and close ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import cast

import pytest

from engine.errors import EngineOverloadedError
from engine.grammar.shared import SharedCompiler
from engine.types import EngineRequest, Grammar, SamplingParams, Structure, StructureKind
from server import grammars
from server.grammars import Grammars

pytestmark = pytest.mark.anyio
SECONDS = 10


class HeldCompiler:
    """Stands for the engine's: compiles nothing before it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: list[str] = []
        self.known: dict[str, Grammar] = {}
        self.closed = False

    def remembered(self, structure: Structure) -> Grammar | None:
        return self.known.get(structure.text)

    def compile(self, structure: Structure) -> Grammar:
        self.begun.append(structure.text)
        assert self.go.wait(SECONDS)
        return self.known.setdefault(structure.text, Grammar(structure, "compiled"))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def compiler() -> HeldCompiler:
    return HeldCompiler()


@pytest.fixture
async def desk(compiler: HeldCompiler) -> AsyncIterator[Grammars]:
    """Afterwards its compiler is closed."""
    desk = Grammars(cast("SharedCompiler", compiler))
    yield desk
    compiler.go.set()
    await desk.close()
    assert compiler.closed


def asking(text: str | None, choices: int = 1) -> list[EngineRequest]:
    grammar = None if text is None else Grammar(Structure(StructureKind.REGEX, text))
    return [
        EngineRequest(f"{text}-{index}", [1], SamplingParams(max_tokens=1), grammar=grammar) for index in range(choices)
    ]


async def begun(compiler: HeldCompiler, count: int) -> None:
    async with asyncio.timeout(SECONDS):
        while len(compiler.begun) < count:  # noqa: ASYNC110 - a thread of its own has no event for the loop
            await asyncio.sleep(0.001)


async def test_requests_get_their_grammar(desk: Grammars, compiler: HeldCompiler) -> None:
    """All choices the same one; requests without a structure are handed back as they came."""
    plain = asking(None, 2)
    assert await desk.compiled(plain) is plain
    compiler.go.set()
    compiled = await desk.compiled(asking("a", 3))
    assert [request.request_id for request in compiled] == ["a-0", "a-1", "a-2"]
    assert {request.grammar for request in compiled} == {compiler.known["a"]}


async def test_one_at_a_time_and_nobody_else_waits(desk: Grammars, compiler: HeldCompiler) -> None:
    """While one is compiled, another waits, a remembered one does not, and the threads for all stay free."""
    compiler.known["known"] = Grammar(Structure(StructureKind.REGEX, "known"), "compiled")
    waiting = [asyncio.create_task(desk.compiled(asking(f"slow-{number}"))) for number in range(64)]
    await begun(compiler, 1)
    (known,) = await desk.compiled(asking("known"))
    assert known.grammar is compiler.known["known"]
    assert await asyncio.wait_for(asyncio.to_thread(lambda: 5), SECONDS) == 5
    assert compiler.begun == ["slow-0"]
    compiler.go.set()
    await asyncio.gather(*waiting)
    assert compiler.begun == [f"slow-{number}" for number in range(64)]


async def test_what_nobody_waits_for_is_not_begun(desk: Grammars, compiler: HeldCompiler) -> None:
    """A client that leaves the line leaves nothing behind."""
    tasks = [asyncio.create_task(desk.compiled(asking(text))) for text in ("first", "left", "last")]
    await begun(compiler, 1)
    tasks[1].cancel()
    await asyncio.wait({tasks[1]})
    compiler.go.set()
    await asyncio.gather(tasks[0], tasks[2])
    assert compiler.begun == ["first", "last"]


async def test_too_long_a_line(desk: Grammars, compiler: HeldCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits longer than the bound is told to come back, and is not compiled for."""
    first = asyncio.create_task(desk.compiled(asking("first")))
    await begun(compiler, 1)
    monkeypatch.setattr(grammars, "WAIT_SECONDS", 0.01)
    with pytest.raises(EngineOverloadedError) as refused:
        await desk.compiled(asking("late"))
    assert refused.value.retry_after > 0
    compiler.go.set()
    await first
    assert compiler.begun == ["first"]
