"""Programs out of Debian packages, for tests against the real thing: unpacked into the cache, never installed.

Installing them would start services and need root. Where there is no apt, a program that the machine has is taken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from filelock import FileLock

from engine.config import cache_folder

FETCH_SECONDS = 100


@cache
def program(package: str, path: str) -> Path:
    """The file at `path` within the Debian package, as `/usr/sbin/nginx` of `nginx`.

    One that is installed is used as it is. Raises `RuntimeError` where there is neither that nor apt.
    """
    installed = Path("/", path)
    if installed.is_file():
        return installed
    folder = cache_folder() / "debian" / package
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            _unpack(package, folder)
    return folder / path.removeprefix("/")


def _unpack(package: str, folder: Path) -> None:
    """Beside its final place, then renamed: another process sees all of it or nothing."""
    if shutil.which("apt-get") is None:
        raise RuntimeError(
            f"this test runs {package}, which is not installed, and there is no apt-get to fetch it with"
        )
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        _download(package, Path(scratch))
        (archive,) = Path(scratch).glob("*.deb")
        contents = Path(scratch) / "contents"
        subprocess.run(["dpkg-deb", "--extract", archive, contents], check=True, timeout=FETCH_SECONDS)
        contents.rename(folder)


def _download(package: str, folder: Path) -> None:
    """With the machine's package lists; where they are missing or old, with fresh ones in a folder of our own."""
    if _apt_get(folder, "download", package) is None:
        return
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={folder}"]
    for command in (["update"], ["download", package]):
        if (failure := _apt_get(folder, *own, *command)) is not None:
            raise RuntimeError(f"apt-get {' '.join(command)} failed: {failure}")


def _apt_get(folder: Path, *arguments: str) -> str | None:
    """None, or what apt-get said when it failed."""
    command = ["apt-get", "-qq", *(["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    return None if done.returncode == 0 else done.stderr.strip() or f"status {done.returncode}"
