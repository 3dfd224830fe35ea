"""What the transformers backend refuses to start with: a library that it was not written against.

Never imports torch.
"""

from __future__ import annotations

import importlib.metadata

from engine.errors import ModelLoadError

TESTED_TRANSFORMERS = "5.19"
"""The release whose private parts `continuous` is written against."""


def require_tested_transformers() -> None:
    """`ModelLoadError` unless the installed transformers is one that this backend was written against."""
    try:
        installed = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        raise ModelLoadError("the transformers engine needs `pip install 'tailrace[cpu]'`") from None
    if not installed.startswith(f"{TESTED_TRANSFORMERS}."):
        raise ModelLoadError(
            f"transformers {installed} is installed; the transformers engine works with {TESTED_TRANSFORMERS}.x only"
        )
