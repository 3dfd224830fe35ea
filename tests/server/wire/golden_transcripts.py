"""Whole streams and whole answers as text, one file a situation: what the wire says, for a change to be seen in a diff.

Never a server: ids to processor to encoder, so that no clock and no network has a part in it. Run to write them anew:

    python -m tests.server.wire.golden_transcripts
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.errors import InvalidRequestError
from engine.output.events import OutputStep
from engine.output.parsers import reasoning_family, tool_family
from engine.output.parsers.plan import ParsingPlan
from engine.output.processor import SequenceProcessor
from engine.output.result import AnswerResult
from engine.types import EngineRequest, FinishReason, SequenceOutput, TextParams, TokenLogprobs
from server.wire.chat_completions.request import ChatRequest
from server.wire.completions.request import CompletionRequest
from server.wire.dialect import AnswerContext, Usage
from server.wire.door import parse_body
from server.wire.errors import facts_of
from server.wire.openai_errors import error_body
from tests.vocabularies import tokenizer, vocabulary

FOLDER = Path(__file__).parent / "golden"
HELLO = "Hello 🌶 world, said สส."
CALL = '<tool_call>\n{"name": "get", "arguments": {"id": "é"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nLet me see.\n</think>\n\n"
PLAN = ParsingPlan(reasoning_family("qwen3"), tools=tool_family("hermes"))
STOP, LENGTH, ABORT, ERROR = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR


@dataclass(frozen=True)
class Situation:
    """What the model says and how it ends, and what the client asked for."""

    texts: Sequence[str] = (HELLO,)
    """Of each choice."""
    end: FinishReason = STOP
    fields: dict[str, Any] = field(default_factory=dict)
    dialect: type[ChatRequest | CompletionRequest] = ChatRequest
    parsing: ParsingPlan | None = None
    tokens_per_step: int = 2
    keeps_alive: bool = False
    """Between the first step and the second nothing came for a while."""


SITUATIONS = {
    "chat-text": Situation(),
    "chat-length": Situation(end=LENGTH),
    "chat-stop-string": Situation(fields={"stop": ["said"]}),
    "chat-two-choices": Situation(("Hello", "world 🌶"), fields={"n": 2}),
    "chat-logprobs": Situation(fields={"logprobs": True, "top_logprobs": 1}),
    "chat-usage": Situation(fields={"stream_options": {"include_usage": True}}),
    "chat-continuous-usage": Situation(
        fields={"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    ),
    "chat-reasoning": Situation((THOUGHT + HELLO,), parsing=PLAN, fields={"stream_options": {"include_usage": True}}),
    "chat-tool": Situation((CALL,), parsing=PLAN),
    "chat-tools": Situation((f"Well. {CALL}\n{SECOND}",), parsing=PLAN),
    "chat-tool-cut": Situation((CALL[:-18],), LENGTH, parsing=PLAN),
    "chat-reasoning-then-tool": Situation((THOUGHT + CALL,), parsing=PLAN, tokens_per_step=5),
    "chat-cancelled": Situation(("Hello wor",), ABORT),
    "chat-failed": Situation(("Hello",), ERROR),
    "chat-keep-alive": Situation(keeps_alive=True),
    "completions-text": Situation(dialect=CompletionRequest),
    "completions-logprobs": Situation(dialect=CompletionRequest, fields={"logprobs": 1}),
    "completions-stop-string": Situation(dialect=CompletionRequest, fields={"stop": "said"}),
    "completions-failed": Situation(("Hello",), ERROR, dialect=CompletionRequest),
}


def transcript(situation: Situation) -> str:
    """The stream's bytes, then the whole answer."""
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "stream": True, **situation.fields}
    request = parse_body(situation.dialect, json.dumps(body).encode())
    steps = _steps(situation, request)
    tokens, thoughts = _counts(steps)
    choices = len(situation.texts)
    about = AnswerContext(
        "r1", 1_700_000_000, "m", 7, choices, vocabulary("qwen3").token_bytes, "fp_1", situation.parsing is not None
    )
    encoder, result = request.encoder(about), AnswerResult(choices)
    usage = Usage(7, tokens, 3, thoughts)
    stream = encoder.start()
    for number, step in enumerate(steps):
        stream += encoder.keepalive if situation.keeps_alive and number == 1 else b""
        stream += encoder.encode([step])
        result.fold(step)
    failures = [step.finished.failure for step in steps if step.finished is not None and step.finished.failure]
    stream += encoder.error(facts_of(failures[0])) if failures else encoder.finish(usage)
    whole = error_body(facts_of(failures[0])) if failures else request.whole(about, result, usage)
    return f"{stream.decode('ascii')}--- whole\n{whole.decode('ascii')}\n"


def _counts(steps: Sequence[OutputStep]) -> tuple[int, int]:
    last = {step.index: (step.completion_tokens, step.reasoning_tokens) for step in steps}
    return sum(tokens for tokens, _ in last.values()), sum(thoughts for _, thoughts in last.values())


def _steps(situation: Situation, request: ChatRequest | CompletionRequest) -> list[OutputStep]:
    generate = request.lower("r1")
    stop = TextParams(generate.text.stop, parsing=situation.parsing)
    sampling = replace(generate.sampling, max_tokens=1_000)
    return [
        step
        for index, text in enumerate(situation.texts)
        for step in _choice(situation, text, EngineRequest(f"r1-{index}", [0], sampling), (stop, index))
    ]


def _choice(
    situation: Situation, text: str, request: EngineRequest, reading: tuple[TextParams, int]
) -> list[OutputStep]:
    ids = tokenizer("qwen3").encode(text, add_special_tokens=False).ids
    processor = SequenceProcessor(vocabulary("qwen3"), request, *reading)
    steps = []
    for start in range(0, len(ids), situation.tokens_per_step):
        now = ids[start : start + situation.tokens_per_step]
        logprobs = [TokenLogprobs(-0.5, ((token_id, -0.5),)) for token_id in now]
        steps.append(processor.feed(SequenceOutput("r1", now, logprobs=logprobs)))
    if situation.end is ABORT:
        steps.append(processor.end(ABORT))
    elif processor.finished is None:
        error = "the engine broke" if situation.end is ERROR else None
        steps.append(processor.feed(SequenceOutput("r1", [], situation.end, error=error)))
    return steps


def refused() -> str:
    """An error before the first byte: a status and a body, streamed or not."""
    error = InvalidRequestError("temperature: Input should be less than or equal to 2", param="temperature")
    return error_body(facts_of(error)).decode("ascii") + "\n"


def all_transcripts() -> dict[str, str]:
    """By the name of their file."""
    return {name: transcript(situation) for name, situation in SITUATIONS.items()} | {"refused": refused()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in all_transcripts().items():
        (FOLDER / f"{name}.txt").write_text(text)
