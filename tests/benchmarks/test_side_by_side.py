"""benchmarks/gpu.sh and what it calls, as far as a machine without a GPU can run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.random_model import make
from benchmarks.served import Served, command

REPOSITORY = Path(__file__).parents[2]


def test_both_servers_get_the_same_engine_arguments() -> None:
    """Each in its own way of saying them."""
    arguments = {"max_num_seqs": 8, "enforce_eager": True, "enable_prefix_caching": False, "dtype": "float32"}
    ours = command("tailrace", Path("folder"), arguments, "vllm")
    theirs = command("vllm", Path("folder"), arguments, "vllm")
    assert [word for word in ours if word.startswith("engine.vllm.")] == [
        "engine.vllm.max_num_seqs=8",
        "engine.vllm.enforce_eager=true",
        "engine.vllm.enable_prefix_caching=false",
        'engine.vllm.dtype="float32"',
    ]
    flags = ["--max-num-seqs", "8", "--enforce-eager", "--no-enable-prefix-caching", "--dtype", "float32"]
    assert theirs[-len(flags) :] == flags


def test_a_server_that_does_not_start_is_shown_with_its_log(tmp_path: Path) -> None:
    """And nothing of it is left."""
    server = Served("tailrace", [sys.executable, "-c", "import sys; sys.exit('no such model')"], tmp_path)
    with pytest.raises(RuntimeError, match="no such model"), server:
        pass
    assert server._process.poll() == 1


def test_the_measurement_runs(demo_model: Path, tmp_path: Path) -> None:
    """On the simulated engine, from the servers' start to the table and the JSON."""
    out = tmp_path / "figures.json"
    words = ["--servers", "tailrace", "--engine", "simulated", "--streams", "1,2", "--requests", "1", "--rounds", "1"]
    words += ["--prompt-tokens", "8", "--max-tokens", "4", "--model", str(demo_model), "--out", str(out)]
    line = [sys.executable, "-m", "benchmarks.side_by_side", *words]
    subprocess.run(line, cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": "."}, check=True, timeout=110)
    document = json.loads(out.read_text())
    assert [(row["server"], row["streams"], row["figures"]["tokens"]) for row in document["rows"]] == [
        ("tailrace", 1, 4),
        ("tailrace", 2, 8),
    ]
    assert out.with_suffix(".md").read_text().count("| tailrace |") == 2


@pytest.mark.real_model
def test_the_model_is_whole(tmp_path: Path) -> None:
    """Its weights are those its configuration tells of, and it has the demo model's tokenizer."""
    from safetensors import safe_open

    parameters = make(tmp_path, "tiny")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as weights:
        names = list(weights.keys())
        assert sum(weights.get_tensor(name).numel() for name in names) == parameters
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["hidden_size"], config["dtype"]) == (128, "bfloat16")
    assert (tmp_path / "tokenizer.json").is_file()


def test_the_script_says_what_it_lacks(tmp_path: Path) -> None:
    """Without an environment or with a wrong option nothing is started."""
    for words, complaint in ((["--out", "x", "--wrong"], "--dry-run"), ([], "test-vllm")):
        env = os.environ | {"PYTHON": str(tmp_path / "none")}
        done = subprocess.run(
            ["benchmarks/gpu.sh", *words],
            cwd=REPOSITORY,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert done.returncode == 2
        assert complaint in done.stderr
