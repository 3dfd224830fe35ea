"""Steady decode of the transformers backend against plain `generate()`, on the demo model, in one run.

    python benchmarks/decode.py [--contexts 100] [--streams 1,32] [--tokens 32] [--rounds 3] [--out FILE]

About two minutes; `--contexts 1000` adds minutes of prefill a round, at 32 streams. Prints a table and writes JSON.
A rate counts the tokens after every stream has its first one, so prefill is in none of them; the rounds alternate,
and a ratio is taken within its round, so that a busy machine hits both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, StoppingCriteria

from engine.backends.transformers import TransformersBackend
from engine.config import EngineConfig
from engine.model import resolve_model
from engine.types import EngineRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: medians over the rounds."""

    context_tokens: int
    streams: int
    generate_tokens_per_second: float
    """Of one `generate()` stream."""
    backend_tokens_per_second: float
    """Of all streams together."""
    ratio: float


class Clock(StoppingCriteria):  # type: ignore[misc]
    """Notes the time of each token of `generate()`, and stops nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def prompts(context: int, count: int, seed: int) -> list[list[int]]:
    """Random token ids, so that no two prompts share a prefix."""
    source = random.Random(seed)
    return [[source.randrange(100, 40_000) for _ in range(context)] for _ in range(count)]


def generate_rate(model: transformers.PreTrainedModel, prompt: list[int], tokens: int) -> float:
    """Tokens a second of one greedy `generate()` stream, after its first token."""
    clock = Clock()
    ids = torch.tensor([prompt])
    limits = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    with torch.inference_mode():
        model.generate(ids, attention_mask=torch.ones_like(ids), stopping_criteria=[clock], **limits)
    return (len(clock.times) - 1) / (clock.times[-1] - clock.times[0])


async def backend_rate(backend: TransformersBackend, batch: list[list[int]], tokens: int) -> float:
    """Tokens a second of all greedy streams together, from the step in which the last gets its first token."""
    # Streams that were prefilled early decode until the last one is: give them tokens enough for that.
    early = sum(map(len, batch)) // 64 + len(batch)
    sampling = SamplingParams(max_tokens=tokens + early, temperature=0.0, ignore_eos=True)
    names = [f"{time.monotonic_ns()}-{number}" for number in range(len(batch))]
    for name, prompt in zip(names, batch, strict=True):
        backend.submit(EngineRequest(name, prompt, sampling))
    started: set[str] = set()
    while len(started) < len(names):
        # The last words of the aborted streams of an earlier round may still come out.
        started.update({output.request_id for output in (await backend.next_step()).outputs}.intersection(names))
    begin, count = time.perf_counter(), 0
    for _ in range(tokens):
        count += sum(len(output.token_ids) for output in (await backend.next_step()).outputs)
    rate = count / (time.perf_counter() - begin)
    backend.abort(names)
    await drained(backend)
    return rate


async def drained(backend: TransformersBackend) -> None:
    """Returns when the engine has freed all KV blocks; it does so without a word, hence the polling."""
    while backend.stats().kv_blocks_used:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def measure(options: argparse.Namespace) -> list[Row]:
    """All rows, after one warm-up of each path."""
    folder = resolve_model(options.model)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, options.dtype)).eval()
    backend = TransformersBackend(engine_config(options), folder)
    await backend.start()
    try:
        generate_rate(model, prompts(100, 1, 0)[0], 8)
        await backend_rate(backend, prompts(100, 1, 0), 8)
        return [
            await measure_row(model, backend, (context, streams), options)
            for context in options.contexts
            for streams in options.streams
        ]
    finally:
        await backend.close()


def engine_config(options: argparse.Namespace) -> EngineConfig:
    """With KV blocks enough that no stream is ever preempted."""
    streams, block_size = max(options.streams), EngineConfig().block_size
    tokens_each = 2 * max(options.contexts) + options.tokens + streams
    blocks = streams * (tokens_each // block_size + 1)
    return EngineConfig(
        dtype=options.dtype,
        max_num_seqs=streams,
        max_model_len=tokens_each,
        num_kv_blocks=blocks,
        block_size=block_size,
    )


async def measure_row(
    model: transformers.PreTrainedModel,
    backend: TransformersBackend,
    shape: tuple[int, int],
    options: argparse.Namespace,
) -> Row:
    """One row; `shape` is the tokens of context and the number of streams."""
    context, streams = shape
    alone, together = [], []
    for number in range(options.rounds):
        batch = prompts(context, streams, seed=1000 * number + streams)
        alone.append(generate_rate(model, batch[0], options.tokens))
        together.append(await backend_rate(backend, batch, options.tokens))
    ratio = statistics.median(ours / theirs for ours, theirs in zip(together, alone, strict=True))
    return Row(context, streams, statistics.median(alone), statistics.median(together), ratio)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--contexts", type=numbers, default=[100], help="prompt tokens of each stream")
    parser.add_argument("--streams", type=numbers, default=[1, 32])
    parser.add_argument("--tokens", type=int, default=32, help="steps that are timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write JSON here")
    options = parser.parse_args()
    rows = asyncio.run(measure(options))
    sys.stdout.write(f"{'context':>8} {'streams':>8} {'generate tok/s':>15} {'backend tok/s':>14} {'ratio':>7}\n")
    for row in rows:
        rates = f"{row.generate_tokens_per_second:15.1f} {row.backend_tokens_per_second:14.1f} {row.ratio:7.2f}"
        sys.stdout.write(f"{row.context_tokens:8d} {row.streams:8d} {rates}\n")
    if options.out:
        machine = {"processor": platform.machine(), "threads": torch.get_num_threads()}
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        report = {
            "dtype": options.dtype,
            "machine": machine,
            "versions": versions,
            "rows": [asdict(row) for row in rows],
        }
        options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
