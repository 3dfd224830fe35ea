"""A process that holds a vLLM engine until it is killed: `python -m tests.vllm.engine_holder FOLDER`.

Prints the ids of the engine's processes, as JSON on a line, when it is up.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.engine.backends.vllm_engines import vllm_backend


async def hold(folder: Path) -> None:
    from engine.backends.vllm.processes import engine_processes

    backend = vllm_backend(folder)
    await backend.start()
    engines = engine_processes()
    workers = [worker for engine in engines for worker in engine.children(recursive=True)]
    sys.stdout.write(json.dumps([process.pid for process in (*engines, *workers)]) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(hold(Path(sys.argv[1])))
