"""Adapters and sleep of vLLM's engine, as the calls that it gets, without vLLM: numbered, bounded, never waited for."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from engine.backends.vllm.adapters import Adapter, Adapters
from engine.backends.vllm.controls import VllmControls
from engine.backends.vllm.ledger import SequenceLedger
from engine.errors import EngineControlError, EngineUnavailableError, InvalidRequestError, ModelLoadError
from engine.types import EngineRequest, SamplingParams

pytestmark = pytest.mark.anyio
SECONDS = 5


class AnsweringEngine:
    """Stands for `LaunchedEngine` and its client: notes what it is asked; folders called `bad` can't be loaded."""

    most_adapters = 1
    can_sleep = True

    def __init__(self) -> None:
        self.client = self
        self.asked: list[tuple[Any, ...]] = []
        self.hangs = False

    async def load_adapter(self, adapter: Adapter) -> None:
        await self._ask("add", adapter.engine_name, adapter.folder)
        if adapter.folder == "bad":
            raise RuntimeError("no such weights")

    async def remove_lora_async(self, number: int) -> bool:
        return await self._ask("remove", number)

    async def sleep_async(self, level: int) -> bool:
        return await self._ask("sleep", level)

    async def wake_up_async(self, tags: list[str] | None) -> bool:
        return await self._ask("wake", tags)

    async def collective_rpc_async(self, method: str) -> bool:
        return await self._ask(method)

    async def _ask(self, *question: Any) -> bool:
        self.asked.append(question)
        if self.hangs:
            await asyncio.Event().wait()
        return True


class Desk:
    """The controls with what they rest on."""

    def __init__(self, limit: int = 2, **configured: str) -> None:
        self.engine, self.ledger, self.adapters = AnsweringEngine(), SequenceLedger(), Adapters(limit)
        self.controls = VllmControls(self.adapters, configured, self.ledger)

    async def begin(self) -> None:
        await self.controls.begin(cast("Any", self.engine))


async def test_each_loading_has_a_name_of_its_own() -> None:
    """So that no block of the old weights is taken for one of the new; what had the name before is freed."""
    desk = Desk(one="a")
    await desk.begin()
    await desk.controls.load_adapter("one", "b")
    assert desk.engine.asked == [("add", "one#1", "a"), ("add", "one#2", "b"), ("remove", 1)]
    assert desk.controls.adapters() == {"one": "b"}
    assert desk.adapters.find("one").number == 2


async def test_an_adapter_in_use_keeps_its_weights() -> None:
    """It is known to no new request, and its running sequences are not disturbed."""
    desk = Desk(one="a")
    await desk.begin()
    desk.ledger.add(EngineRequest("r", [1], SamplingParams(max_tokens=1), adapter="one"))
    await desk.controls.unload_adapter("one")
    assert desk.engine.asked == [("add", "one#1", "a")]
    with pytest.raises(InvalidRequestError) as gone:
        desk.adapters.find("one")
    assert gone.value.param == "model"


async def test_no_more_than_the_engine_keeps() -> None:
    """One more is refused before the engine hears of it; in place of a loaded one it is none more."""
    desk = Desk(1, one="a")
    await desk.begin()
    with pytest.raises(EngineControlError, match="max_cpu_loras"):
        await desk.controls.load_adapter("two", "b")
    await desk.controls.load_adapter("one", "b")
    assert not [question for question in desk.engine.asked if question[:2] == ("add", "two#2")]
    with pytest.raises(EngineControlError, match="enable_lora"):
        await Desk(0).controls.load_adapter("one", "a")


async def test_what_cannot_be_loaded() -> None:
    """At the first start it is the operator's to mend; later it leaves all as it was, and after a restart the rest."""
    with pytest.raises(ModelLoadError, match=r"engine.lora_modules.wrong: .*no such weights"):
        await Desk(wrong="bad").begin()
    desk = Desk(one="a")
    await desk.begin()
    with pytest.raises(EngineControlError, match="no such weights"):
        await desk.controls.load_adapter("one", "bad")
    assert desk.controls.adapters() == {"one": "a"}
    desk.adapters.put(Adapter("two", "bad", 9))
    desk.controls.end()
    await desk.begin()
    assert desk.controls.adapters() == {"one": "a"}


async def test_a_restart_brings_back_what_was_loaded_last() -> None:
    """Not what the config says: an operator may have unloaded it."""
    desk = Desk(one="a")
    await desk.begin()
    await desk.controls.unload_adapter("one")
    await desk.controls.load_adapter("two", "b")
    desk.controls.end()
    desk.engine.asked.clear()
    await desk.begin()
    assert [question[2] for question in desk.engine.asked if question[0] == "add"] == ["b"]


@pytest.mark.parametrize(
    ("level", "woken_by"),
    [(1, [("wake", None)]), (2, [("wake", ["weights"]), ("reload_weights",), ("wake", ["kv_cache"])])],
)
async def test_weights_that_are_gone_are_read_again(level: int, woken_by: list[tuple[Any, ...]]) -> None:
    """Before the engine takes sequences; a restart wakes it too."""
    desk = Desk()
    await desk.begin()
    await desk.controls.sleep(level)
    assert desk.controls.sleep_level == level
    await desk.controls.wake_up()
    assert desk.engine.asked == [("sleep", level), *woken_by]
    await desk.controls.sleep(level)
    desk.controls.end()
    assert desk.controls.sleep_level == 0


async def test_an_engine_that_was_not_told_to_sleep() -> None:
    """Says what to set."""
    desk = Desk()
    await desk.begin()
    desk.engine.can_sleep = False
    with pytest.raises(EngineControlError, match="enable_sleep_mode"):
        await desk.controls.sleep(1)
    assert (desk.engine.asked, desk.controls.sleep_level) == ([], 0)


async def test_nobody_waits_for_an_engine_that_ended() -> None:
    """Whoever asked hears that; and whoever asks afterwards, at once."""
    desk = Desk()
    await desk.begin()
    desk.engine.hangs = True
    asking = asyncio.ensure_future(desk.controls.load_adapter("one", "a"))
    async with asyncio.timeout(SECONDS):
        while not desk.engine.asked:  # noqa: ASYNC110 - the question is under way when the engine has it
            await asyncio.sleep(0)
        desk.controls.end()
        with pytest.raises(EngineUnavailableError):
            await asking
        with pytest.raises(EngineUnavailableError):
            await desk.controls.sleep(1)
    assert desk.controls.adapters() == {}
