"""A process that tries grammars out before the server compiles them: what hangs or crashes does so here.

llguidance is quick and bounds much of its own work, but not all: some schemas of a hundred bytes take gigabytes,
minutes, or the process's stack. Never started by hand: `rehearsal` starts it, talks to it over a socket, and ends it.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import resource
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from engine.grammar.lowering import lower
from engine.grammar.schema import StructureError
from engine.grammar.tokens import build_matcher, build_tokenizer
from engine.types import StructureKind

STACK_BYTES = 1 << 20
"""Of the thread that compiles here. Threads in the server have more, so that what fits here fits there."""
MEMORY_BYTES = 128 << 20
"""What all rehearsals may take beyond the tokenizer; where the system does not tell (no /proc), nothing is bounded."""
STEPS = 48
"""Tokens that a grammar is followed for: what is too complex shows in its first ones."""
LONGEST_MESSAGE = 300
"""Characters of llguidance's own words that go into an error."""
_PLACE = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: |invalid regex .* \(in regex\): )?", re.DOTALL)
_LISTING = re.compile(r"\n\s*\d+ \| .*|<state>.*|<non-verbose/>.*", re.DOTALL)


def serve(connection: Connection) -> None:
    """Answers until the other side is gone, also while a grammar is being compiled. Each answer is a JSON object."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    tokenizer = build_tokenizer(pickle.loads(connection.recv_bytes()))  # noqa: S301 - from the process that started us
    _bound_memory()
    connection.send_bytes(b"{}")
    while True:
        try:
            kind, text = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        threading.Thread(target=_answer, args=(connection, tokenizer, StructureKind(kind), text), daemon=True).start()


def _answer(connection: Connection, tokenizer: LLTokenizer, kind: StructureKind, text: str) -> None:
    before = _status("VmRSS")
    answer: dict[str, Any]
    try:
        grammar = lower(kind, text)
        error = rehearse(tokenizer, grammar)
        answer = {"grammar": grammar, "error": error, "bytes": max(0, _status("VmRSS") - before)}
    except StructureError as refused:
        answer = {"error": str(refused)}
    except MemoryError:
        os._exit(1)
    except Exception as error:  # noqa: BLE001 - whatever the library raises, the structure made it do so
        answer = {"error": f"it can't be compiled: {error}"[:LONGEST_MESSAGE]}
    connection.send_bytes(json.dumps(answer).encode())


def rehearse(tokenizer: LLTokenizer, grammar: str) -> str | None:
    """Follows the grammar along tokens that it allows; what went wrong, or None."""
    matcher = build_matcher(tokenizer, grammar)
    source = random.Random(0)
    for _ in range(STEPS):
        if matcher.is_error():
            return _message(matcher)
        if matcher.is_stopped():
            return None
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        if not allowed:
            return "no text keeps to it"
        matcher.consume_token(_some_bit(allowed, source))
    return None


def _message(matcher: LLMatcher) -> str:
    """What llguidance says, without the place in a text that the client never saw."""
    reason = " ".join(_PLACE.sub("", _LISTING.sub("", matcher.get_error())).split())
    return "no text keeps to it" if reason.startswith("NoExtension") else reason[:LONGEST_MESSAGE]


def _some_bit(bits: int, source: random.Random) -> int:
    """The position of one of the bits that are set, at least one of which is."""
    start = source.randrange(bits.bit_length())
    rest = bits >> start
    return start + (rest & -rest).bit_length() - 1


def _bound_memory() -> None:
    taken = _status("VmData")
    if taken:
        resource.setrlimit(resource.RLIMIT_DATA, (taken + MEMORY_BYTES, taken + MEMORY_BYTES))


def _status(field: str) -> int:
    """One of this process's own figures, in bytes; 0 where the system has no /proc."""
    path = Path("/proc/self/status")
    if not path.is_file():
        return 0
    (line,) = (line for line in path.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
