"""What vLLM's engine does for one sequence and for many, asked through the backend: real weights, real steps."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.detokenizer import Vocabulary
from engine.errors import ContextLengthError, InvalidRequestError, UnsupportedParameterError
from engine.grammar.shared import SharedCompiler
from engine.tokenizer import Tokenizer
from engine.types import FinishReason
from tests.engine.backends.vllm_engines import SharedEngine
from tests.engine.grammar.ten_schemas import SCHEMAS, prompt, structure, validates
from tests.vllm.answers_of_a_backend import PROMPT, ask, greedy, next_step

REPEATED = [1, *[4093, 198, 19556, 28, 339, 5248] * 12]
SPECULATIVE = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
PROMPTS = [REPEATED, PROMPT, [number % 20_000 + 100 for number in range(150)]]


async def test_64_dropped_streams_are_free_after_one_step(shared: SharedEngine) -> None:
    """The step after the abort names all of them, and `stats()` shows every block free, with nothing else going on."""
    async with shared.started(max_num_seqs=64) as backend:
        ids = [f"r{number}" for number in range(64)]
        for request_id in ids:
            backend.submit(greedy(request_id, max_tokens=500))
        while backend.stats().running < 64:
            await next_step(backend)
        backend.abort(ids)
        step = await next_step(backend)
        while not step.freed:  # one that was under way before the engine could hear of it
            step = await next_step(backend)
        assert sorted(step.freed) == sorted(ids)
        stats = backend.stats()
        assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
        assert not backend.request_ids()


async def test_prompts_are_remembered(shared: SharedEngine) -> None:
    """The second of two equal prompts finds its blocks; answers are equal."""
    async with shared.started(max_num_seqs=64) as backend:
        prompt = [number % 20_000 + 500 for number in range(150)]
        hits = backend.stats().prefix_cache_hits_total
        (first,) = await ask(backend, greedy("first", prompt))
        (second,) = await ask(backend, greedy("second", prompt))
        assert (first.cached_tokens, second.cached_tokens) == (0, 128)
        assert second.token_ids == first.token_ids
        assert backend.stats().prefix_cache_hits_total == hits + 128


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**63 - 1])
async def test_a_seed_repeats_itself(shared: SharedEngine, seed: int) -> None:
    """Any 64-bit seed, alone and in company; another seed gives another answer."""
    async with shared.started(max_num_seqs=64) as backend:
        drawn: dict[str, Any] = {"temperature": 1.5, "max_tokens": 16}
        (alone,) = await ask(backend, greedy("a", seed=seed, **drawn))
        again, other = await ask(backend, greedy("b", seed=seed, **drawn), greedy("c", seed=seed ^ 1024, **drawn))
        assert again.token_ids == alone.token_ids
        assert other.token_ids != alone.token_ids


async def test_a_seed_repeats_itself_after_a_long_prompt(shared: SharedEngine) -> None:
    """However many steps the prompt took: several, or one where its blocks were remembered. The engine lives on."""
    prompt = [number % 20_000 + 1_100 for number in range(150)]
    async with shared.started(max_num_seqs=64) as backend:
        drawn: dict[str, Any] = {"temperature": 1.5, "max_tokens": 16}
        first, beside = await ask(backend, greedy("a", prompt, seed=7, **drawn), greedy("b", prompt[1:], **drawn))
        (again,) = await ask(backend, greedy("c", prompt, seed=7, **drawn))
        assert (first.cached_tokens, again.cached_tokens) == (0, 128)
        assert again.token_ids == first.token_ids
        assert beside.finish_reason is FinishReason.LENGTH


async def test_stop_tokens_end_a_sequence(shared: SharedEngine) -> None:
    """The token counts, is named, and is the last; before `min_tokens` it can't be sampled."""
    async with shared.started(max_num_seqs=64) as backend:
        (free,) = await ask(backend, greedy("free"))
        stop = free.token_ids[2]
        (stopped,) = await ask(backend, greedy("stopped", stop_token_ids=frozenset({stop})))
        assert stopped.token_ids == free.token_ids[:3]
        assert (stopped.finish_reason, stopped.stop_token_id) == (FinishReason.STOP, stop)
        (longer,) = await ask(backend, greedy("longer", stop_token_ids=frozenset({stop}), min_tokens=6))
        assert len(longer.token_ids) >= 6
        assert stop not in longer.token_ids[:6]


async def test_the_end_of_sequence_ends_a_sequence(shared: SharedEngine) -> None:
    """Unless it is ignored; a bias brings it about, and its id is named."""
    async with shared.started(max_num_seqs=64) as backend:
        (eos,) = backend.limits.eos_token_ids
        biased = greedy("ends", logit_bias={eos: 100.0}, ignore_eos=False)
        ended, ignoring = await ask(backend, biased, greedy("goes on", logit_bias={eos: 100.0}))
        assert (ended.token_ids, ended.finish_reason, ended.stop_token_id) == ([eos], FinishReason.STOP, eos)
        assert (ignoring.token_ids, ignoring.finish_reason) == ([eos] * 8, FinishReason.LENGTH)


async def test_logprobs_are_of_the_models_own_distribution(shared: SharedEngine) -> None:
    """Temperature, bias and penalties change what is sampled, not the log probabilities that are told."""
    async with shared.started(max_num_seqs=64) as backend:
        (plain,) = await ask(backend, greedy("plain", max_tokens=1, logprobs=5))
        hot = greedy("hot", max_tokens=1, logprobs=2, temperature=2.0, seed=1, logit_bias={plain.token_ids[0]: -50.0})
        (other,) = await ask(backend, hot)
        assert len(plain.logprobs[0].top) == 5
        assert len(other.logprobs[0].top) == 2
        assert dict(other.logprobs[0].top) == pytest.approx(dict(plain.logprobs[0].top[:2]))
        assert other.token_ids != plain.token_ids
        assert other.logprobs[0].chosen <= other.logprobs[0].top[0][1]


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"top_p": 0.0, "temperature": 1.0}, "top_p"),
        ({"logit_bias": {10**6: 1.0}}, "logit_bias"),
        ({"stop_token_ids": frozenset({10**6})}, "stop_token_ids"),
    ],
)
async def test_what_vllm_refuses_is_refused_at_the_door(
    shared: SharedEngine, sampling: dict[str, Any], param: str
) -> None:
    """With our field's name, and nothing is left of it."""
    async with shared.started(max_num_seqs=64) as backend:
        with pytest.raises(InvalidRequestError) as refused:
            backend.check(greedy("r", **sampling))
        assert refused.value.param == param
        assert not backend.request_ids()


async def test_the_context_is_the_bound(shared: SharedEngine) -> None:
    """Prompt and output together, to the token."""
    async with shared.started(max_num_seqs=64) as backend:
        room = backend.limits.context_length
        request = greedy("r", [5] * (room - 4), max_tokens=4)
        backend.check(request)
        with pytest.raises(ContextLengthError):
            backend.check(replace(request, sampling=replace(request.sampling, max_tokens=5)))


async def test_speculation_changes_no_greedy_text(shared: SharedEngine) -> None:
    """N-gram guesses give several tokens in a step, and the tokens that are given without them."""
    requests = [greedy(f"r{number}", prompt, max_tokens=40) for number, prompt in enumerate(PROMPTS)]
    async with shared.started(max_num_seqs=64) as backend:
        plain = await ask(backend, *requests)
    async with shared.started(vllm={"speculative_config": SPECULATIVE}) as backend:
        guessed = await ask(backend, *requests)
    assert [answer.token_ids for answer in guessed] == [answer.token_ids for answer in plain]
    assert max(plain[0].grouping) == 1
    assert max(guessed[0].grouping) > 1
    assert all(answer.finish_reason is FinishReason.LENGTH for answer in guessed)


async def test_guesses_stay_within_a_structure(shared: SharedEngine, demo_model: Path) -> None:
    """Several tokens in a step, and every answer is valid by its schema, as it is without guesses."""
    tokenizer = Tokenizer.from_folder(demo_model)
    async with shared.started(vllm={"speculative_config": SPECULATIVE}) as backend:
        compiler = SharedCompiler(Vocabulary.from_tokenizer(tokenizer.backend), lambda: backend.limits, backend.accept)
        requests = [
            replace(
                greedy(name, prompt(tokenizer, question), max_tokens=200, ignore_eos=False, frequency_penalty=0.5),
                grammar=await asyncio.to_thread(compiler.compile, structure(name)),
            )
            for name, (question, _) in SCHEMAS.items()
        ]
        answers = await ask(backend, *requests)
        await asyncio.to_thread(compiler.close)
    for request, answer in zip(requests, answers, strict=True):
        assert answer.finish_reason is FinishReason.STOP
        assert validates(request.request_id, tokenizer.decode(answer.token_ids[:-1]))
    assert max(max(answer.grouping) for answer in answers) > 1


async def test_log_probabilities_of_the_prompt(shared: SharedEngine) -> None:
    """One entry a token but the first, with the first output, also where the prompt takes several steps."""
    text = [number % 20_000 + 900 for number in range(150)]
    async with shared.started(vllm={"speculative_config": SPECULATIVE}) as backend:
        long, short, none = await ask(
            backend,
            greedy("long", text, max_tokens=2, prompt_logprobs=2),
            greedy("short", max_tokens=2, prompt_logprobs=0),
            greedy("none", max_tokens=2),
        )
        assert none.prompt_logprobs is None
        assert len(short.prompt_logprobs or ()) == len(PROMPT)
        assert long.prompt_logprobs is not None
        assert len(long.prompt_logprobs) == len(text)
        assert long.prompt_logprobs[0] is None
        for entry in long.prompt_logprobs[1:]:
            assert entry is not None
            assert entry.chosen <= entry.top[0][1]
            assert len(entry.top) == 2
        with pytest.raises(InvalidRequestError) as refused:
            backend.check(greedy("much", prompt_logprobs=10**6))
        assert refused.value.param == "prompt_logprobs"


async def test_engines_without_a_policy_refuse_priorities(shared: SharedEngine) -> None:
    """By name; the one that everything has is no priority."""
    async with shared.started(vllm={"speculative_config": SPECULATIVE}) as backend:
        backend.check(replace(greedy("r"), priority=0))
        with pytest.raises(UnsupportedParameterError) as refused:
            backend.check(replace(greedy("r"), priority=1))
        assert refused.value.param == "priority"
