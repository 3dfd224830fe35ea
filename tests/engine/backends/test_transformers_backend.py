"""The transformers backend on the demo model: what it says is what `generate()` and plain logits say."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.backends.transformers import TransformersBackend
from engine.config import EngineConfig
from engine.errors import EngineUnavailableError
from engine.types import EngineStats, FinishReason, StepOutputs
from tests.engine.backends.transformers_runs import answer, collect, is_empty, request, run, until

pytestmark = pytest.mark.real_model

EOS = 2
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
SOON = 1.0
"""Seconds after an abort in which its KV blocks are free: one engine step, and some more on a busy machine."""
NEAR_TIE = 1e-3
"""Logits nearer than this are a tie: a batch changes the order of additions, and float32 rounds."""


@pytest.fixture(scope="module")
async def backend(demo_model: Path) -> AsyncIterator[TransformersBackend]:
    backend = TransformersBackend(EngineConfig(max_model_len=1024, num_kv_blocks=320, max_num_seqs=32), demo_model)
    await backend.start()
    yield backend
    await backend.close()


@pytest.fixture(autouse=True)
async def _leaves_nothing(backend: TransformersBackend) -> AsyncIterator[None]:
    """Whatever a test does, nothing of its sequences is left."""
    yield
    await until(backend, is_empty)
    assert backend._live == {}


@pytest.fixture(scope="module")
def model(demo_model: Path) -> Iterator[Any]:
    """The same weights, called plainly."""
    with torch.inference_mode():
        yield AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32).eval()


def prompts(count: int, seed: int = 0, longest: int = 100) -> list[list[int]]:
    """Random ids, of lengths on and off block borders."""
    source = random.Random(seed)
    lengths = [source.choice([1, 31, 32, 33, 64, source.randrange(2, longest)]) for _ in range(count)]
    return [[source.randrange(100, 40_000) for _ in range(length)] for length in lengths]


def generate(model: Any, prompt: list[int], tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    limits = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    output: list[int] = model.generate(ids, attention_mask=torch.ones_like(ids), **limits)[0].tolist()
    return output[len(prompt) :]


def logits_after(model: Any, token_ids: list[int]) -> torch.Tensor:
    row: torch.Tensor = model(torch.tensor([token_ids])).logits[0, -1]
    return row


def assert_same(model: Any, prompt: list[int], one: list[int], other: list[int]) -> None:
    """Equal, or parted at a near-tie of the two tokens' logits."""
    for place, (left, right) in enumerate(zip(one, other, strict=True)):
        if left != right:
            row = logits_after(model, prompt + one[:place])
            assert abs(float(row[left] - row[right])) < NEAR_TIE, f"parted at {place} without a tie"
            return


async def test_greedy_is_what_generate_says(backend: TransformersBackend, model: Any) -> None:
    """Token for token, for prompts on and off block borders, longer than one step takes, all at once."""
    batch = [*prompts(6), prompts(1, seed=9)[0] * 8]
    answers = await run(backend, *(request(prompt, 12, ignore_eos=True) for prompt in batch))
    for prompt, got in zip(batch, answers, strict=True):
        assert got.finish_reason is FinishReason.LENGTH
        assert_same(model, prompt, got.token_ids, generate(model, prompt, 12))


async def test_company_changes_nothing(backend: TransformersBackend, model: Any) -> None:
    """32 sequences at once give what each gives alone; a step's outputs come together."""
    batch = prompts(32, seed=3, longest=40)
    together = await run(backend, *(request(prompt, 8, ignore_eos=True) for prompt in batch))
    for prompt, got in list(zip(batch, together, strict=True))[::3]:
        alone = await answer(backend, prompt, 8, ignore_eos=True)
        assert_same(model, prompt, got.token_ids, alone.token_ids)
        assert got.outputs == len(got.token_ids) == 8


async def test_one_engine_step_is_one_batch(backend: TransformersBackend) -> None:
    """A step that generates for several sequences says so in one StepOutputs."""
    ids = [one.request_id for one in (request(PROMPT, 6, ignore_eos=True) for _ in range(4))]
    requests = [request(PROMPT, 6, ignore_eos=True) for _ in ids]
    for one in requests:
        backend.submit(one)
    sizes: list[int] = []
    while sum(sizes) < 24:
        step: StepOutputs = await asyncio.wait_for(backend.next_step(), 60)
        assert len({output.request_id for output in step.outputs}) == len(step.outputs)
        sizes.append(len(step.outputs))
    assert max(sizes) == 4


async def test_seeds_repeat_in_any_company(backend: TransformersBackend) -> None:
    """The same seed gives the same tokens, alone and in a batch; another seed gives others."""
    sampled = {"temperature": 1.0, "top_p": 0.95}
    alone = await answer(backend, PROMPT, 12, seed=11, ignore_eos=True, **sampled)
    others = [request(prompt, 12, **sampled) for prompt in prompts(5, seed=5)]
    same, different = (request(PROMPT, 12, seed=seed, ignore_eos=True, **sampled) for seed in (11, 12))
    answers = await run(backend, *others, same, different)
    assert answers[-2].token_ids == alone.token_ids
    assert answers[-1].token_ids != alone.token_ids


async def test_end_of_sequence_ends_it(backend: TransformersBackend) -> None:
    """With the model's own end of sequence as last token; ignored, it is an ordinary token."""
    bias = {EOS: 100.0}
    ended = await answer(backend, PROMPT, 5, logit_bias=bias)
    assert (ended.token_ids, ended.finish_reason, ended.stop_token_id) == ([EOS], FinishReason.STOP, EOS)
    ignored = await answer(backend, PROMPT, 3, logit_bias=bias, ignore_eos=True)
    assert (ignored.token_ids, ignored.finish_reason, ignored.stop_token_id) == ([EOS] * 3, FinishReason.LENGTH, None)


async def test_stop_tokens_and_min_tokens(backend: TransformersBackend) -> None:
    """A stop token ends the sequence as its last token, though not before min_tokens."""
    plain = await answer(backend, PROMPT, 6)
    stop = plain.token_ids[3]
    first = plain.token_ids.index(stop)
    ended = await answer(backend, PROMPT, 6, stop_token_ids=frozenset({stop}))
    assert ended.token_ids == plain.token_ids[: first + 1]
    assert (ended.finish_reason, ended.stop_token_id) == (FinishReason.STOP, stop)
    later = await answer(backend, PROMPT, 8, stop_token_ids=frozenset({stop}), min_tokens=7, ignore_eos=True)
    assert stop not in later.token_ids[:7]
    assert len(later.token_ids) >= 7


async def test_penalties_follow_the_logits(backend: TransformersBackend, model: Any) -> None:
    """A slow loop over plain logits, penalized from scratch at each step, chooses the same tokens."""
    penalties = {"repetition_penalty": 1.3, "frequency_penalty": 0.8, "presence_penalty": 0.6}
    got = await answer(backend, PROMPT, 16, ignore_eos=True, **penalties)
    generated: list[int] = []
    for token_id in got.token_ids:
        row = logits_after(model, PROMPT + generated)
        seen = torch.tensor(sorted({*PROMPT, *generated}))
        row[seen] = torch.where(row[seen] > 0, row[seen] / 1.3, row[seen] * 1.3)
        counts = torch.bincount(torch.tensor(generated, dtype=torch.int64), minlength=len(row))
        row -= 0.8 * counts + 0.6 * (counts > 0)
        assert float(row.max() - row[token_id]) < NEAR_TIE
        generated.append(token_id)
    assert generated != (await answer(backend, PROMPT, 16, ignore_eos=True)).token_ids


async def test_logprobs_are_those_of_a_plain_forward(backend: TransformersBackend, model: Any) -> None:
    """Within 1e-3 of log_softmax over the model's logits, whatever the temperature and the bias."""
    got = await answer(backend, PROMPT, 6, ignore_eos=True, logprobs=4, temperature=0.8, seed=3, logit_bias={50: 3.0})
    assert len(got.logprobs) == len(got.token_ids) == 6
    for place, (token_id, reported) in enumerate(zip(got.token_ids, got.logprobs, strict=True)):
        expected = logits_after(model, PROMPT + got.token_ids[:place]).log_softmax(-1)
        assert reported.chosen == pytest.approx(float(expected[token_id]), abs=1e-3)
        assert [value for _, value in reported.top] == pytest.approx(expected.topk(4).values.tolist(), abs=1e-3)
        assert all(float(expected[one]) == pytest.approx(value, abs=1e-3) for one, value in reported.top)
    assert (await answer(backend, PROMPT, 2)).logprobs == []


async def test_a_shared_prefix_is_not_computed_twice(backend: TransformersBackend) -> None:
    """Whole blocks of a prompt seen before are reused, reported once, and change no token."""
    prompt = prompts(1, seed=77, longest=90)[0] * 100
    prompt = prompt[:100]
    before = backend.stats()
    first, second = [await answer(backend, prompt, 4, ignore_eos=True) for _ in range(2)]
    assert (first.cached_tokens, second.cached_tokens) == (0, 96)
    after = backend.stats()
    assert after.prefix_cache_queries_total - before.prefix_cache_queries_total == 200
    assert after.prefix_cache_hits_total - before.prefix_cache_hits_total == 96
    assert first.token_ids == second.token_ids


async def test_abort_while_decoding(backend: TransformersBackend) -> None:
    """Its blocks are free within a second, and those that go on are not disturbed."""
    kept, gone = request(PROMPT, 24, ignore_eos=True), request(prompts(1, seed=8)[0] * 3, 900, ignore_eos=True)
    for one in (kept, gone):
        backend.submit(one)
    await until(backend, lambda stats: stats.running == 2)
    backend.abort([gone.request_id])
    backend.abort([gone.request_id, "unknown"])
    await until(backend, lambda stats: stats.running == 1, seconds=SOON)
    (got,) = await collect(backend, [kept.request_id])
    assert got.token_ids == (await answer(backend, PROMPT, 24, ignore_eos=True)).token_ids


async def test_abort_during_prefill(backend: TransformersBackend) -> None:
    """A long prompt is dropped between two chunks."""
    long = request(prompts(1, seed=6)[0] * 1000, 8).prompt_token_ids[:900]
    one = request(long, 8)
    backend.submit(one)
    await until(backend, lambda stats: stats.kv_blocks_used > 0)
    backend.abort([one.request_id])
    await until(backend, is_empty, seconds=SOON)


async def test_abort_while_waiting(backend: TransformersBackend) -> None:
    """A sequence that never ran is forgotten; the one that was in its way goes on."""
    running = [request(PROMPT, 200, ignore_eos=True) for _ in range(32)]
    waiting = [request(PROMPT, 8) for _ in range(3)]
    for one in (*running, *waiting):
        backend.submit(one)
    await until(backend, lambda stats: (stats.running, stats.waiting) == (32, 3))
    backend.abort([one.request_id for one in waiting])
    await until(backend, lambda stats: (stats.running, stats.waiting) == (32, 0), seconds=SOON)
    backend.abort([one.request_id for one in running])
    await until(backend, is_empty, seconds=SOON)


async def test_abort_right_after_submit(backend: TransformersBackend) -> None:
    """However early the abort, the sequence is gone, and an id can be used again at once."""
    one = request(PROMPT, 200)
    for _ in range(5):
        backend.submit(one)
        backend.abort([one.request_id])
    backend.submit(one)
    backend.abort([one.request_id])
    await until(backend, is_empty, seconds=SOON)


async def test_two_hundred_sequences_dropped_at_random(backend: TransformersBackend) -> None:
    """Submitted and aborted in any state, they leave no block, no entry and no stuck engine."""
    source = random.Random(2)
    live: list[str] = []
    for number in range(200):
        one = request(prompts(1, seed=number, longest=60)[0], source.choice([1, 5, 200]), ignore_eos=True)
        backend.submit(one)
        live.append(one.request_id)
        while len(live) > source.randrange(60):
            backend.abort([live.pop(source.randrange(len(live)))])
        if number % 20 == 0:
            await asyncio.wait_for(backend.next_step(), 60)
    backend.abort(live)
    await until(backend, is_empty, seconds=SOON)
    assert (await answer(backend, PROMPT, 2)).finish_reason is FinishReason.LENGTH


async def test_waiting_for_a_step_can_be_given_up(backend: TransformersBackend) -> None:
    """A cancelled wait loses nothing."""
    waiting = asyncio.ensure_future(backend.next_step())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert len((await answer(backend, PROMPT, 3, ignore_eos=True)).token_ids) == 3


async def test_the_loop_is_never_blocked(backend: TransformersBackend) -> None:
    """Submitting a full batch takes less time than one decode step of it."""
    batch = [request(prompt, 1) for prompt in prompts(32, seed=4, longest=900)]
    begin = asyncio.get_running_loop().time()
    for one in batch:
        backend.submit(one)
    assert asyncio.get_running_loop().time() - begin < 0.25
    backend.abort([one.request_id for one in batch])


async def test_before_its_start_there_is_no_engine(demo_model: Path) -> None:
    """Nothing can be submitted, there is nothing to count, and closing is legal."""
    unborn = TransformersBackend(EngineConfig(), demo_model)
    assert unborn.stats() == EngineStats(0, 0, 0, 0)
    with pytest.raises(EngineUnavailableError):
        unborn.submit(request(PROMPT))
    await unborn.close()
    await unborn.close()
    with pytest.raises(EngineUnavailableError):
        await unborn.next_step()
