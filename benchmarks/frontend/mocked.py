"""Starts tailrace or vLLM's own server with the mock core in its engine process's place. All else is theirs.

    python -m benchmarks.frontend.mocked --board FILE --token-ids FILE --core-cpu N tailrace|vllm WORD...

The words are those that follow the server's name on its own command line. Replaced is one function, the one that vLLM
runs in the process it starts for the engine: sockets, handshake, supervision and end are as they come, in both servers.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from benchmarks import vllm_command
from engine.backends.vllm.environment import prepare_import


def replace_engine(settings: argparse.Namespace) -> None:
    from vllm.v1.engine.core import EngineCoreProc

    from benchmarks.frontend.mock_core import MockSettings, run_mock_core

    told = MockSettings(settings.board, settings.token_ids, settings.core_cpu)
    EngineCoreProc.run_engine_core = partial(run_mock_core, told)


def run_tailrace(words: list[str]) -> None:
    from server.cli import main

    sys.argv = ["tailrace", *words]
    main()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", type=Path, required=True)
    parser.add_argument("--token-ids", type=Path, required=True)
    parser.add_argument("--core-cpu", type=int, required=True)
    parser.add_argument("server", choices=("tailrace", "vllm"))
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return parser.parse_args()


def main() -> None:
    settings = parsed()
    if settings.server == "tailrace":
        prepare_import()  # as its backend does before vLLM's first import
    replace_engine(settings)
    run = run_tailrace if settings.server == "tailrace" else vllm_command.run
    run(settings.words)


if __name__ == "__main__":
    main()
