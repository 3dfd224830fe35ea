"""The traffic with vLLM's engine process, without vLLM: its messages are read, ours leave in order, nothing is lost."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine.backends.vllm.child_log import ChildFormatter, Unexpected
from engine.backends.vllm.counts import EngineCounts
from engine.backends.vllm.ledger import SequenceLedger
from engine.backends.vllm.outbox import Outbox
from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.loading import load_engine
from engine.types import EngineRequest, FinishReason, SamplingParams, TokenLogprobs

pytestmark = pytest.mark.anyio


def request(request_id: str, logprobs: int | None = None, **sampling: Any) -> EngineRequest:
    return EngineRequest(request_id, [1], SamplingParams(max_tokens=9, logprobs=logprobs, **sampling))


def output(key: str, *token_ids: int, finish: str | None = None, events: tuple[str, ...] = (), **more: Any) -> Any:
    """As vLLM's `EngineCoreOutput`."""
    return SimpleNamespace(
        request_id=key,
        new_token_ids=list(token_ids),
        finish_reason=None if finish is None else SimpleNamespace(name=finish),
        events=[SimpleNamespace(type=SimpleNamespace(name=name)) for name in events],
        **{"new_logprobs": None, "new_prompt_logprobs_tensors": None, "prefill_stats": None} | more,
    )


def message(*outputs: Any, gone: tuple[str, ...] = ()) -> Any:
    """As vLLM's `EngineCoreOutputs`."""
    return SimpleNamespace(outputs=list(outputs), finished_requests=set(gone) or None)


def test_a_sequence_is_scheduled_once() -> None:
    """With its event or with its first token, whichever comes first; preemptions are counted."""
    ledger = SequenceLedger()
    first, second = ledger.add(request("a")), ledger.add(request("b"))
    step = ledger.take(message(output(first, events=("QUEUED", "SCHEDULED"))))
    assert (step.scheduled, step.outputs) == (["a"], [])
    step = ledger.take(message(output(first, 7, events=("PREEMPTED", "SCHEDULED")), output(second, 8)))
    assert step.scheduled == ["b"]
    assert [one.token_ids for one in step.outputs] == [[7], [8]]
    assert ledger.preemptions == 1


@pytest.mark.parametrize(
    ("finish", "reason", "stop"),
    [
        ("STOP", FinishReason.STOP, 8),
        ("REPETITION", FinishReason.STOP, 8),
        ("LENGTH", FinishReason.LENGTH, None),
        ("ABORT", FinishReason.ABORT, None),
        ("ERROR", FinishReason.ERROR, None),
    ],
)
def test_an_end_is_told_once(finish: str, reason: FinishReason, stop: int | None) -> None:
    """With the output that says so, and not once more with the engine's word that the sequence is gone."""
    ledger = SequenceLedger()
    key = ledger.add(request("a"))
    step = ledger.take(message(output(key, 7, 8, finish=finish), gone=(key,)))
    (ended,) = step.outputs
    assert (ended.finish_reason, ended.stop_token_id, ended.token_ids) == (reason, stop, [7, 8])
    assert (ended.error is not None) == (reason is FinishReason.ERROR)
    assert step.freed == []
    assert len(ledger) == 0
    assert ledger.abort(["a"]) == []
    assert ledger.take(message(output(key, 9), gone=(key,))).outputs == []


def test_an_abort_is_confirmed_by_the_engine() -> None:
    """Not before it says that the sequence is gone, and once; whoever is gone unasked ends with an error."""
    ledger = SequenceLedger()
    key, other = ledger.add(request("a")), ledger.add(request("b"))
    assert ledger.abort(["a", "unknown"]) == [key]
    assert ledger.abort(["a"]) == [key]  # told again
    step = ledger.take(message(output(key, 7)))
    assert (len(step.outputs), step.freed, ledger.request_ids()) == (1, [], {"a", "b"})
    step = ledger.take(message(gone=(key,)))
    assert (step.outputs, step.freed, ledger.request_ids()) == ([], ["a"], {"b"})
    step = ledger.take(message(gone=(key, other)))
    assert [one.finish_reason for one in step.outputs] == [FinishReason.ERROR]
    assert (step.freed, len(ledger)) == ([], 0)


def test_a_request_id_may_be_used_again_at_once() -> None:
    """Late words of the aborted sequence are told from those of its successor."""
    ledger = SequenceLedger()
    old = ledger.add(request("a"))
    ledger.abort(["a"])
    new = ledger.add(request("a"))
    assert old != new
    step = ledger.take(message(gone=(old,)))
    assert step.freed == ["a"]
    assert ledger.abort(["a"]) == [new]
    assert ledger.take(message(gone=(new,))).freed == ["a"]
    assert len(ledger) == 0


def test_each_gets_the_logprobs_that_it_asked_for() -> None:
    """A batch's rows are as wide as its greediest request; the first column is the chosen token."""
    rows = SimpleNamespace(
        logprob_token_ids=SimpleNamespace(tolist=lambda: [[5, 3, 5, 9], [4, 4, 2, 1]]),
        logprobs=SimpleNamespace(tolist=lambda: [[-2.0, -0.1, -2.0, -3.0], [-0.5, -0.5, -1.0, -9.0]]),
    )
    ledger = SequenceLedger()
    none, one, two = (ledger.add(request(str(asked), asked)) for asked in (None, 0, 2))
    step = ledger.take(message(*(output(key, 5, 4, new_logprobs=rows) for key in (none, one, two))))
    assert step.outputs[0].logprobs is None
    assert [(one.chosen, one.top) for one in step.outputs[1].logprobs or ()] == [(-2.0, ()), (-0.5, ())]
    tops = [one.top for one in step.outputs[2].logprobs or ()]
    assert tops == [((3, -0.1), (5, -2.0)), ((4, -0.5), (2, -1.0))]


def test_the_engines_end_is_everyones() -> None:
    """Each live sequence ends with the reason; the aborted ones just are no more."""
    ledger = SequenceLedger()
    for request_id in "abc":
        ledger.add(request(request_id))
    ledger.abort(["b"])
    ended = ledger.end_all("it died").outputs
    assert [(one.request_id, one.finish_reason, one.error) for one in ended] == [
        ("a", FinishReason.ERROR, "it died"),
        ("c", FinishReason.ERROR, "it died"),
    ]
    assert len(ledger) == 0


def test_counts_are_sums_over_the_engines() -> None:
    """Blocks are exact for what vLLM tells as a share; who does not run waits; totals outlive an engine."""

    def scheduler(running: int, usage: float) -> Any:
        cache = SimpleNamespace(queries=10, hits=4)
        return SimpleNamespace(num_running_reqs=running, kv_cache_usage=usage, prefix_cache_stats=cache)

    counts = EngineCounts()
    counts.begin(kv_blocks=2 * 511, engines=2, block_size=16)
    counts.take(0, scheduler(2, 1 - 508 / 511))
    counts.take(1, scheduler(1, 1 - 510 / 511))
    stats = counts.stats(held=5, preemptions=3)
    assert (stats.running, stats.waiting, stats.kv_blocks_used, stats.preemptions_total) == (3, 2, 4, 3)
    counts.end()
    stats = counts.stats(held=0, preemptions=3)
    assert (stats.running, stats.waiting, stats.kv_blocks_total) == (0, 0, 0)
    assert (stats.prefix_cache_queries_total, stats.prefix_cache_hits_total) == (20, 8)


class Client:
    """vLLM's client, as far as the outbox knows it: notes what is sent, and fails where it is told to."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.resources = SimpleNamespace(engine_dead=False)
        self.fails: Exception | None = None

    async def add_request_async(self, request: Any) -> None:
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        self.sent.append(request.request_id)

    async def abort_requests_async(self, keys: list[str]) -> None:
        self.sent.append(keys)


async def test_nothing_overtakes() -> None:
    """Messages leave in the order in which they were given; aborts that follow one another leave together."""
    client, lost = Client(), list[str]()
    outbox = Outbox(client, lambda key, _: lost.append(key))
    running = asyncio.ensure_future(outbox.run())
    outbox.add(SimpleNamespace(request_id="a"))
    outbox.abort(["a"])
    outbox.abort(["b", "c"])
    outbox.add(SimpleNamespace(request_id="d"))
    while len(client.sent) < 3:  # noqa: ASYNC110 - the client is a list
        await asyncio.sleep(0)
    outbox.abort(["d"])
    while len(client.sent) < 4:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    assert client.sent == ["a", ["a", "b", "c"], "d", ["d"]]
    assert lost == []
    running.cancel()


async def test_what_can_not_be_sent_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """One sequence's failure is that sequence's; a dead engine ends the traffic."""
    client, lost = Client(), list[str]()
    outbox = Outbox(client, lambda key, _: lost.append(key))
    running = asyncio.ensure_future(outbox.run())
    client.fails = TypeError("not a number")
    outbox.add(SimpleNamespace(request_id="a"))
    while not lost:  # noqa: ASYNC110 - a list too
        await asyncio.sleep(0)
    assert lost == ["a"]
    assert "could not be sent" in caplog.text
    client.resources.engine_dead = True
    outbox.add(SimpleNamespace(request_id="b"))
    with pytest.raises(TypeError):
        await running
    assert lost == ["a"]


@pytest.mark.parametrize(
    ("installed", "message"),
    [({}, r"not installed: `pip install 'tailrace\[vllm\]'`"), ({"vllm": "0.33.0"}, r"0\.33\.0.*0\.32\.x only")],
)
def test_another_vllm_or_none_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, demo_model: Any, installed: dict[str, str], message: str
) -> None:
    """Before anything of it is imported."""

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ModelLoadError, match=message) as refused:
        load_engine(EngineConfig(kind="vllm", model=str(demo_model)))
    assert "\n" not in str(refused.value)


def test_the_engines_process_logs_json() -> None:
    """The engine process's records are JSON lines, and what is warned of on purpose is left out."""
    record = logging.LogRecord("vllm.v1", logging.WARNING, __file__, 1, "Using custom scheduler class %s", ("x",), None)
    assert not Unexpected().filter(record)
    record.msg = "else: %s"
    assert Unexpected().filter(record)
    assert '"message": "else: x"' in ChildFormatter().format(record)


def test_log_probabilities_of_the_prompt_come_with_the_first_output() -> None:
    """Nothing for the prompt's first token, and as many of the likeliest as were asked for."""
    rows = SimpleNamespace(
        logprob_token_ids=SimpleNamespace(tolist=lambda: [[5, 3], [4, 4]]),
        logprobs=SimpleNamespace(tolist=lambda: [[-2.0, -0.1], [-0.5, -0.5]]),
    )
    ledger = SequenceLedger()
    asked, silent = ledger.add(request("a", prompt_logprobs=1)), ledger.add(request("b"))
    step = ledger.take(message(*(output(key, 7, new_prompt_logprobs_tensors=rows) for key in (asked, silent))))
    told, none = step.outputs
    assert none.prompt_logprobs is None
    assert told.prompt_logprobs == [None, TokenLogprobs(-2.0, ((3, -0.1),)), TokenLogprobs(-0.5, ((4, -0.5),))]


def test_adapters_in_use() -> None:
    """Of sequences that run and of those that wait; not of those that are over."""
    ledger = SequenceLedger()
    runs, waits, over = (ledger.add(replace(request(name), adapter=name)) for name in ("a", "b", "c"))
    ledger.add(request("none"))
    ledger.take(message(output(runs, 7), output(over, 7, finish="LENGTH")))
    assert ledger.adapters() == ({"a"}, {"b"})
    ledger.fail(waits, "lost")
    assert ledger.adapters() == ({"a"}, set())
