"""An engine put to sleep: live sequences end first, none is taken meanwhile, and whatever fails leaves it awake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping

import pytest

from engine.core import EngineCore
from engine.errors import EngineControlError, EngineUnavailableError
from engine.slumber import ENDED, Slumber
from engine.types import FinishReason, TextParams
from tests.engine.engines import fold, running_core, scripted, until
from tests.vocabularies import vocabulary

pytestmark = pytest.mark.anyio


class SleepyControls:
    """Stands for an engine that sleeps; notes what the core held then, and refuses where it is told to."""

    most_adapters = 0

    def __init__(self, core: EngineCore) -> None:
        self.sleep_level = 0
        self.changes: list[tuple[int, int]] = []
        """Each new level, with the sequences that were live or not let go of."""
        self.refuses = False
        self._core = core

    async def sleep(self, level: int) -> None:
        if self.refuses:
            raise EngineControlError("vLLM: no")
        await self._become(level)

    async def wake_up(self) -> None:
        await self._become(0)

    async def _become(self, level: int) -> None:
        await asyncio.sleep(0)
        self.changes.append((level, self._core.live_sequences + self._core.unsettled))
        self.sleep_level = level

    def adapters(self) -> Mapping[str, str]:
        return {}

    def adapters_in_use(self) -> tuple[Collection[str], Collection[str]]:
        return (), ()

    async def load_adapter(self, name: str, folder: str) -> None:
        raise AssertionError(name, folder)

    async def unload_adapter(self, name: str) -> None:
        raise AssertionError(name)


@pytest.fixture
async def core() -> AsyncIterator[EngineCore]:
    async with running_core(vocabulary("smollm2"), step_interval_ms=1) as core:
        yield core


@pytest.mark.parametrize("level", [1, 2])
async def test_live_sequences_end_before_the_engine_sleeps(core: EngineCore, level: int) -> None:
    """With a word on why; none is taken while it sleeps, and all are when it is awake again."""
    controls = SleepyControls(core)
    slumber = Slumber(core, controls)
    stream = core.open([scripted("long", [5] * 100_000, max_tokens=5_000)], TextParams())
    folding = asyncio.ensure_future(fold(stream))
    await until(lambda: core.generated_tokens_total > 3)
    await slumber.sleep(level)
    assert controls.changes == [(level, 0)]
    (choice,) = (await folding).choices
    assert choice.finished is not None
    assert (choice.finished.reason, choice.finished.message) == (FinishReason.ABORT, ENDED)
    assert (core.up, core.ready, slumber.level) == (True, False, level)
    with pytest.raises(EngineUnavailableError, match="asleep"):
        await fold(core.open([scripted("refused", [5])], TextParams()))
    await slumber.wake_up()
    assert core.ready
    assert (await fold(core.open([scripted("taken", [5])], TextParams()))).choices


async def test_twice_is_once(core: EngineCore) -> None:
    """Each change is made one at a time, in the order in which they were asked for."""
    controls = SleepyControls(core)
    slumber = Slumber(core, controls)
    await slumber.wake_up()
    await asyncio.gather(slumber.sleep(1), slumber.sleep(1), slumber.wake_up(), slumber.wake_up(), slumber.sleep(2))
    assert controls.changes == [(1, 0), (0, 0), (2, 0)]
    assert not core.ready


async def test_an_engine_that_refuses_stays_awake(core: EngineCore) -> None:
    """And takes sequences."""
    controls = SleepyControls(core)
    controls.refuses = True
    with pytest.raises(EngineControlError):
        await Slumber(core, controls).sleep(1)
    assert core.ready


async def test_a_dead_engine_does_not_sleep_and_the_next_one_is_awake(core: EngineCore) -> None:
    """What was asleep died with it."""
    slumber = Slumber(core, SleepyControls(core))
    await slumber.sleep(1)
    core.engine_died("test")
    assert core.paused is None
    await core.close()
    with pytest.raises(EngineUnavailableError):
        await Slumber(core, SleepyControls(core)).sleep(1)
