"""Structured output of the transformers backend on the demo model: that answers validate, and what that costs.

    python benchmarks/structured.py validity [--answers 200] [--temperature 1.0]
    python benchmarks/structured.py cost [--streams 8] [--tokens 16] [--rounds 9]

`validity` draws answers for ten schemas, two of each a batch, and judges each that ended by itself with `jsonschema`;
it exits with 1 if one does not validate. About four minutes for 200. `cost` times the decoding of the same prompts with
and without a JSON schema in alternate rounds, greedy and sampled; a ratio is taken within its round, so that a busy
machine hits both alike. About three minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from engine.backends.transformers import TransformersBackend
from engine.config import EngineConfig
from engine.detokenizer import Vocabulary
from engine.grammar import GrammarCompiler, GrammarTokens
from engine.model import resolve_model
from engine.tokenizer import Tokenizer
from engine.types import EngineRequest, FinishReason, Grammar, SamplingParams, Structure, StructureKind
from tests.engine.grammar.ten_schemas import SCHEMAS, prompt, structure, validates

LONG_SCHEMA = """{"type": "array", "items": {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 30}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "kind": {"enum": ["cat", "dog", "bird"]}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3}},
    "required": ["name", "age", "kind", "tags"], "additionalProperties": false}, "minItems": 100}"""
"""Its answers are long enough that no stream ends while it is timed."""
ENDED = ("valid", "invalid")
MOST_SEEDS = 100
"""After so many rounds, what is still short stays short."""


class Bench:
    """A started backend and a compiler for its model."""

    def __init__(self, backend: TransformersBackend, folder: Path) -> None:
        self.backend = backend
        self.tokenizer = Tokenizer.from_folder(folder)
        vocabulary = Vocabulary.from_tokenizer(self.tokenizer.backend)
        self.compiler = GrammarCompiler(GrammarTokens.of_model(vocabulary, backend.limits))

    async def collect(self, requests: Sequence[EngineRequest]) -> dict[str, tuple[list[int], FinishReason]]:
        """What each request generated, and how it ended."""
        token_ids: dict[str, list[int]] = {request.request_id: [] for request in requests}
        ended: dict[str, tuple[list[int], FinishReason]] = {}
        for request in requests:
            self.backend.submit(request)
        while len(ended) < len(requests):
            for output in (await self.backend.next_step()).outputs:
                token_ids[output.request_id] += output.token_ids
                if output.finish_reason is not None:
                    ended[output.request_id] = token_ids[output.request_id], output.finish_reason
        return ended

    async def seconds(self, requests: Sequence[EngineRequest], tokens: int) -> float:
        """Of so many steps in which all requests decode."""
        for request in requests:
            self.backend.submit(request)
        waiting = {request.request_id for request in requests}
        while waiting:
            waiting -= {output.request_id for output in (await self.backend.next_step()).outputs}
        begin = time.perf_counter()
        for _ in range(tokens):
            await self.backend.next_step()
        elapsed = time.perf_counter() - begin
        ids = [request.request_id for request in requests]
        self.backend.abort(ids)
        freed: set[str] = set()
        while len(freed) < len(ids):
            freed.update((await self.backend.next_step()).freed)
        return elapsed


@asynccontextmanager
async def started(streams: int) -> AsyncIterator[Bench]:
    folder = resolve_model("demo")
    backend = TransformersBackend(EngineConfig(max_num_seqs=streams, max_model_len=1024), folder)
    await backend.start()
    bench = Bench(backend, folder)
    try:
        yield bench
    finally:
        bench.compiler.close()
        await backend.close()


async def validity(answers: int, temperature: float) -> bool:
    """Whether all answers that ended by themselves are valid; one that was cut is drawn again, with another seed."""
    wanted = answers // len(SCHEMAS)
    counts: Counter[tuple[str, str]] = Counter()
    async with started(streams=2 * len(SCHEMAS)) as bench:
        for seed in range(MOST_SEEDS):
            short = [name for name in SCHEMAS if sum(counts[name, outcome] for outcome in ENDED) < wanted]
            if not short:
                break
            names = [name for name in short for _ in range(2)]
            drawn = [drawing(bench, name, 2 * seed + twin % 2, temperature) for twin, name in enumerate(names)]
            ended = await bench.collect(drawn)
            for name, request in zip(names, drawn, strict=True):
                token_ids, reason = ended[request.request_id]
                text = bench.tokenizer.decode(token_ids, skip_special_tokens=True)
                counts[name, judge(name, text, reason)] += 1
    for name in SCHEMAS:
        row = [f"{counts[name, outcome]:4d} {outcome}" for outcome in (*ENDED, "cut", "failed")]
        sys.stdout.write(f"{name:14} {'  '.join(row)}\n")
    valid = sum(counts[name, "valid"] for name in SCHEMAS)
    sys.stdout.write(f"{valid} of {sum(counts.values()) - sum(counts[name, 'cut'] for name in SCHEMAS)} valid\n")
    return not any(counts[name, outcome] for name in SCHEMAS for outcome in ("invalid", "failed"))


def drawing(bench: Bench, name: str, seed: int, temperature: float) -> EngineRequest:
    sampling = SamplingParams(max_tokens=200, temperature=temperature, seed=seed)
    ids = prompt(bench.tokenizer, SCHEMAS[name][0])
    return EngineRequest(f"{name}-{seed}", ids, sampling, grammar=bench.compiler.compile(structure(name)))


def judge(name: str, text: str, reason: FinishReason) -> str:
    """`cut` is no fault of the grammar's."""
    if reason is not FinishReason.STOP:
        return "cut" if reason is FinishReason.LENGTH else "failed"
    try:
        valid = validates(name, text)
    except ValueError:
        valid = False
    if not valid:
        sys.stdout.write(f"\n{name}: {text!r}\n")
    return "valid" if valid else "invalid"


async def cost(streams: int, tokens: int, rounds: int) -> None:
    """Prints the ratio of decode speeds with and without a schema."""
    async with started(streams) as bench:
        grammar = bench.compiler.compile(Structure(StructureKind.JSON_SCHEMA, LONG_SCHEMA))
        ids = prompt(bench.tokenizer, "Describe a hundred pets.")
        for temperature in (0.0, 1.0):
            ratios, speeds = [], []
            for number in range(rounds + 1):
                free = await bench.seconds(batch(ids, streams, temperature, None), tokens)
                kept = await bench.seconds(batch(ids, streams, temperature, grammar), tokens)
                if number:  # the first pair warms up
                    ratios.append(free / kept)
                    speeds.append((streams * tokens / free, streams * tokens / kept))
            free_speed, kept_speed = (statistics.median(column) for column in zip(*speeds, strict=True))
            sys.stdout.write(
                f"temperature {temperature}: {free_speed:.1f} tokens/s without, {kept_speed:.1f} with a schema; "
                f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})\n"
            )


def batch(ids: list[int], streams: int, temperature: float, grammar: Grammar | None) -> list[EngineRequest]:
    sampling = [
        SamplingParams(max_tokens=512, temperature=temperature, seed=seed, ignore_eos=grammar is None)
        for seed in range(streams)
    ]
    return [EngineRequest(f"{seed}", ids, one, grammar=grammar) for seed, one in enumerate(sampling)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["validity", "cost"])
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16, help="steps that are timed")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if options.what == "cost":
        asyncio.run(cost(options.streams, options.tokens, options.rounds))
    elif not asyncio.run(validity(options.answers, options.temperature)):
        sys.exit(1)


if __name__ == "__main__":
    main()
