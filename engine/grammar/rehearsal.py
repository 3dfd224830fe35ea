"""Our side of the process that tries grammars out: starts it, asks it, and ends it when it takes too long.

Never on the event loop, and never two questions at once: its owner holds a lock.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engine.grammar.schema import StructureError, TooSlowError
from engine.grammar.tokens import GrammarTokens
from engine.types import Structure

START_SECONDS = 60.0
"""What the process may take to come up: a second when nothing else runs."""
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What is known of a grammar that was found good."""

    grammar: str
    """In llguidance's language."""
    memory_bytes: int
    """What compiling it took and kept."""


class RehearsalProcess:
    """The process, started when it is first needed, and again after it was lost."""

    def __init__(self, tokens: GrammarTokens) -> None:
        self._tokens = tokens
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def rehearse(self, structure: Structure, seconds: float) -> Rehearsed:
        """Compiles it there. `StructureError` where that fails, kills the process or takes longer than `seconds`."""
        fresh = self._connection is None
        try:
            answer = self._ask(structure, seconds)
            if answer is None and not fresh:  # it may have died of something else
                answer = self._ask(structure, seconds)
        except TooSlowError:
            self.close()
            raise
        if answer is None:
            raise StructureError("it needs too much memory, or too deep a recursion, to compile")
        if answer["error"] is not None:
            raise StructureError(answer["error"])
        return Rehearsed(answer["grammar"], answer["bytes"])

    def _ask(self, structure: Structure, seconds: float) -> dict[str, Any] | None:
        """The process's answer; None when it died of the question, or had died before."""
        connection = self._connection or self._start()
        try:
            connection.send_bytes(json.dumps([structure.kind, structure.text]).encode())
            if not connection.poll(seconds):
                raise TooSlowError(f"it takes more than {seconds:g} s to compile")
            answer: dict[str, Any] = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            self.close()
            return None
        return answer

    def close(self) -> None:
        """Ends the process, whatever it does. Legal at any time, and twice."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()

    def _start(self) -> Connection:
        ours, theirs = Pipe()
        command = [sys.executable, "-m", "engine.grammar.worker", str(theirs.fileno())]
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # a crash there is an answer, and told as one
            start_new_session=True,  # a terminal's Ctrl-C is the server's affair
        )
        theirs.close()
        self._connection = ours
        try:
            ours.send_bytes(pickle.dumps(self._tokens))
            if not ours.poll(START_SECONDS):
                raise TimeoutError(f"no word from the process within {START_SECONDS:g} s")
            ours.recv_bytes()
        except (EOFError, OSError) as error:
            self.close()
            raise RuntimeError(f"the process that tries grammars out does not start: {error!r}") from error
        return ours
