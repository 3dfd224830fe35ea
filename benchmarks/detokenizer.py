"""What a token costs, in nanoseconds on one core: our detokenizer and stop matcher beside the libraries', in one run.

Never compares across runs: all contenders take turns over the same ids, and each one's best round counts.

    python benchmarks/detokenizer.py [--vocabularies smollm2 llama2 ...] [--rounds 15] [--out figures.json]
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tokenizers.decoders import DecodeStream

from engine.detokenizer import IncrementalDetokenizer, StopMatcher
from engine.output.processor import SequenceProcessor
from engine.types import EngineRequest, SamplingParams, SequenceOutput, TextParams
from tests import vocabularies

TEXTS = {
    "ascii": "The quick brown fox jumps over the lazy dog; it's 3.14 o'clock. def f(x): return x + 1\n",
    "cjk+emoji": "こんにちは世界、你好世界！안녕하세요 👩‍👩‍👧‍👦 🏳️‍🌈 𠮷野家で🍜を食べた。\n",
}
TOKENS = 64 * 256
SEQUENCES = 256
ANSWER = 1024
"""Tokens; vLLM keeps the whole answer's text, so that a token costs more the longer the answer is."""
OPENINGS = ("\nUser ", "<|end", "###", "the end ", "界", "🍜🍜", "dog, ", " o")
STOPS = {
    1: ["\nUser:"],
    4: ["\nUser:", "<|im_end|>", "### Instruction", "Observation:"],
    64: [f"{opening}{number}" for number in range(8) for opening in OPENINGS],
}
RATIOS = (
    ("DecodeStream", "push"),
    ("DecodeStream x256", "in line x256"),
    ("vLLM, 1 stops", "push, 1 stops"),
    ("push, 64 stops", "push, 1 stops"),
)
Ids = Sequence[int]
Contender = Callable[[], object]


def one_id_a_push(name: str, ids: Ids, stops: Sequence[str]) -> Contender:
    """`push([id])` of one sequence, and the stop matcher behind it."""
    vocabulary = vocabularies.vocabulary(name)

    def plain() -> None:
        push = IncrementalDetokenizer(vocabulary).push
        for token_id in ids:
            push([token_id])

    def stopping() -> None:
        push, match = IncrementalDetokenizer(vocabulary).push, StopMatcher(stops).push
        for token_id in ids:
            match(push([token_id]))

    return stopping if stops else plain


def staggered_steps(ids: Ids) -> list[list[int]]:
    """Engine steps over 256 sequences, each of which is at another place of the text; about `TOKENS` ids in all."""
    starts = [sequence * len(ids) // SEQUENCES for sequence in range(SEQUENCES)]
    return [[ids[(start + step) % len(ids)] for start in starts] for step in range(len(ids) // SEQUENCES)]


def step_over_sequences(name: str, ids: Ids, stops: Sequence[str]) -> Contender:
    """Steps over 256 sequences whose loop takes the transitions itself."""
    vocabulary = vocabularies.vocabulary(name)
    steps = staggered_steps(ids)

    def plain() -> None:
        sequences = [IncrementalDetokenizer(vocabulary) for _ in range(SEQUENCES)]
        for step in steps:
            for sequence, token_id in zip(sequences, step, strict=False):
                _text, sequence.state = sequence.state[token_id]

    def stopping() -> None:
        sequences = [(IncrementalDetokenizer(vocabulary), StopMatcher(stops)) for _ in range(SEQUENCES)]
        for step in steps:
            for (sequence, matcher), token_id in zip(sequences, step, strict=False):
                text, sequence.state = sequence.state[token_id]
                _outcome, matcher.node = matcher.node[text]

    return stopping if stops else plain


def push_token_over_sequences(name: str, ids: Ids) -> Contender:
    """The same steps through `push_token`."""
    vocabulary = vocabularies.vocabulary(name)
    steps = staggered_steps(ids)

    def run() -> None:
        sequences = [IncrementalDetokenizer(vocabulary) for _ in range(SEQUENCES)]
        for step in steps:
            for sequence, token_id in zip(sequences, step, strict=False):
                sequence.push_token(token_id)

    return run


def processor_over_sequences(name: str, ids: Ids) -> Contender:
    """The same steps through the engine's whole output processor: text, aligned token list, output step."""
    vocabulary = vocabularies.vocabulary(name)
    request = EngineRequest("benchmark", [], SamplingParams(max_tokens=len(ids)))
    steps = [[SequenceOutput("benchmark", [token_id]) for token_id in step] for step in staggered_steps(ids)]

    def run() -> None:
        processors = [SequenceProcessor(vocabulary, request, TextParams(), 0) for _ in range(SEQUENCES)]
        for step in steps:
            for processor, output in zip(processors, step, strict=False):
                processor.feed(output)

    return run


def decode_stream(name: str, ids: Ids) -> Contender:
    """The library's own stream decoder."""
    tokenizer = vocabularies.tokenizer(name)

    def run() -> None:
        step = DecodeStream(skip_special_tokens=True).step
        for token_id in ids:
            step(tokenizer, token_id)

    return run


def decode_stream_over_sequences(name: str, ids: Ids) -> Contender:
    """The library's stream decoders, one for each of 256 sequences, in the same steps as ours."""
    tokenizer = vocabularies.tokenizer(name)
    steps = staggered_steps(ids)

    def run() -> None:
        streams = [DecodeStream(skip_special_tokens=True) for _ in range(SEQUENCES)]
        for step in steps:
            for stream, token_id in zip(streams, step, strict=False):
                stream.step(tokenizer, token_id)

    return run


def transformers_streamer(name: str, ids: Ids) -> Contender | None:
    """`transformers.TextStreamer`, its output thrown away; None where it is not installed."""
    try:
        import numpy as np
        from transformers import PreTrainedTokenizerFast, TextStreamer
    except ImportError:
        return None
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(vocabularies.tokenizer_file(name)))
    arrays = [np.array([token_id]) for token_id in ids]

    class Silent(TextStreamer):  # type: ignore[misc]
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            """Drops the text."""

    def run() -> None:
        streamer: Any = Silent(tokenizer)
        for array in arrays:
            streamer.put(array)

    return run


def vllm_detokenizer(name: str, ids: Ids, stops: Sequence[str]) -> Contender | None:
    """The detokenizer of vLLM, driven as its output processor does; None where it is not installed."""
    try:
        from transformers import PreTrainedTokenizerFast
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.engine.detokenizer import IncrementalDetokenizer as VllmDetokenizer
    except ImportError:
        return None
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(vocabularies.tokenizer_file(name)))
    none = {"mm_features": None, "pooling_params": None, "lora_request": None, "cache_salt": None}
    request = EngineCoreRequest(
        request_id="benchmark",
        prompt_token_ids=[],
        sampling_params=SamplingParams(stop=list(stops)),
        arrival_time=0.0,
        data_parallel_rank=None,
        **none,
    )

    def run() -> None:
        for start in range(0, len(ids), ANSWER):
            detokenizer: Any = VllmDetokenizer.from_new_request(tokenizer, request)
            for token_id in ids[start : start + ANSWER]:
                detokenizer.update([token_id], stop_terminated=False)
                detokenizer.get_next_output_text(finished=False, delta=True)

    return run


def contenders(name: str, ids: Ids) -> dict[str, Contender]:
    """Everything that takes part, by the name of its column."""
    chosen = {
        "push": one_id_a_push(name, ids, ()),
        "push_token x256": push_token_over_sequences(name, ids),
        "processor x256": processor_over_sequences(name, ids),
        "in line x256": step_over_sequences(name, ids, ()),
        "DecodeStream": decode_stream(name, ids),
        "DecodeStream x256": decode_stream_over_sequences(name, ids),
    }
    for count, stops in STOPS.items():
        chosen[f"push, {count} stops"] = one_id_a_push(name, ids, stops)
        chosen[f"in line x256, {count} stops"] = step_over_sequences(name, ids, stops)
    others = {
        "TextStreamer": transformers_streamer(name, ids),
        "vLLM": vllm_detokenizer(name, ids, ()),
        "vLLM, 1 stops": vllm_detokenizer(name, ids, STOPS[1]),
    }
    return chosen | {column: run for column, run in others.items() if run is not None}


def measure(runs: dict[str, Contender], tokens: int, rounds: int) -> dict[str, float]:
    """Best nanoseconds a token of each contender; they take turns, so that a slow moment of the machine hits all."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        for column, run in runs.items():
            started = time.perf_counter_ns()
            run()
            spent = (time.perf_counter_ns() - started) / tokens
            best[column] = min(spent, best.get(column, spent))
    return best


def encode(name: str, text: str) -> list[int]:
    """`TOKENS` ids of the text over and over."""
    tokenizer = vocabularies.tokenizer(name)
    once: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return (once * (TOKENS // len(once) + 1))[:TOKENS]


def report(figures: list[dict[str, Any]]) -> None:
    """Prints one row a vocabulary and text."""
    columns = list(figures[0]["ns_per_token"])
    print("ns a token".ljust(24) + "".join(f"{column:>{len(column) + 2}}" for column in columns))
    for row in figures:
        cells = (f"{row['ns_per_token'].get(column, float('nan')):{len(column) + 2}.0f}" for column in columns)
        print(f"{row['vocabulary']:>12} {row['text']:<11}" + "".join(cells))
    print("\n" + "times".ljust(24) + "".join(f"  {over} / {under}" for over, under in RATIOS))
    for row in figures:
        ns = row["ns_per_token"]
        known = [(f"  {over} / {under}", ns.get(over, float("nan")) / ns[under]) for over, under in RATIOS]
        ratios = "".join(f"{ratio:{len(title)}.2f}" for title, ratio in known)
        print(f"{row['vocabulary']:>12} {row['text']:<11}" + ratios)


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vocabularies", nargs="+", default=list(vocabularies.NAMES), choices=vocabularies.NAMES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    gc.disable()
    figures = []
    for name in arguments.vocabularies:
        for kind, text in TEXTS.items():
            ids = encode(name, text)
            ns = measure(contenders(name, ids), len(ids), arguments.rounds)
            figures.append({"vocabulary": name, "text": kind, "ns_per_token": ns})
    report(figures)
    if arguments.out:
        machine = {"python": platform.python_version(), "processor": platform.processor() or platform.machine()}
        arguments.out.write_text(
            json.dumps({"machine": machine, "tokens": TOKENS, "figures": figures}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
