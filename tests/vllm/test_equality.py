"""vLLM and the embedded engine say the same: greedy text of one model does not depend on who computes it."""

from __future__ import annotations

from pathlib import Path

from engine.backends.transformers import TransformersBackend
from engine.config import EngineConfig
from engine.tokenizer import Tokenizer
from tests.engine.backends.vllm_engines import SharedEngine
from tests.vllm.answers_of_a_backend import Answer, ask, greedy

QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "Name three colours.",
    "What is seven times eight?",
    "Who wrote Hamlet?",
    "Tell me a joke about cats.",
    "How do I boil an egg?",
    "What is a prime number?",
    "Translate 'good morning' into Spanish.",
    "Write a haiku about rain.",
    "What does a compiler do?",
    "List the planets.",
    "Explain gravity to a child.",
    "What is the largest ocean?",
    "Give me a name for a dog.",
    "How many legs has a spider?",
    "What is bread made of?",
    "When did the Second World War end?",
    "Describe a sunset.",
    "What is the opposite of cold?",
)
TOKENS = 24
NEAR_TIE = 1e-3
"""Log probabilities nearer than this are a tie: the two add in another order, and float32 rounds."""


def parted_at_a_tie(one: Answer, other: Answer) -> bool:
    """Where the answers part, both engines saw the two best tokens as all but equal."""
    step = next(at for at, pair in enumerate(zip(one.token_ids, other.token_ids, strict=True)) if pair[0] != pair[1])
    gaps = [answer.logprobs[step].top[0][1] - answer.logprobs[step].top[1][1] for answer in (one, other)]
    return max(gaps) < NEAR_TIE


async def test_20_prompts_get_the_same_tokens(shared: SharedEngine, demo_model: Path) -> None:
    """Token for token, with log probabilities equal but for rounding; answers may part at a tie only."""
    tokenizer = Tokenizer.from_folder(demo_model)
    requests = [
        greedy(f"r{number}", tokenizer.encode(question, add_special_tokens=False), max_tokens=TOKENS, logprobs=2)
        for number, question in enumerate(QUESTIONS)
    ]
    async with shared.started() as backend:
        theirs = await ask(backend, *requests)
    await shared.close()
    embedded = TransformersBackend(EngineConfig(max_model_len=2048), demo_model)
    await embedded.start()
    try:
        ours = await ask(embedded, *requests)
    finally:
        await embedded.close()
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_ids == other.token_ids or parted_at_a_tie(one, other)
        assert abs(one.logprobs[0].chosen - other.logprobs[0].chosen) < NEAR_TIE
