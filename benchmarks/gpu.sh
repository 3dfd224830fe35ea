#!/usr/bin/env bash
# tailrace and `vllm serve` side by side on one NVIDIA GPU, under ten minutes; GPU.md says what is measured and how.
#
#   benchmarks/gpu.sh [--dry-run] [--out FILE.json]
#
# $PYTHON is an interpreter that has vLLM and tailrace's libraries: .venv-vllm's (`make test-vllm VLLM=vllm`) unless given.
# --dry-run needs no GPU: a tiny model on vLLM's CPU build, or, without vLLM, tailrace alone on transformers.
# The model is made in a temporary folder and removed; never a download, never a server left running.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

dry_run=false
out=benchmarks/gpu.json
while (($#)); do
  case "$1" in
    --dry-run) dry_run=true ;;
    --out) out=${2:?--out wants a file}; shift ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
  shift
done

PYTHON=${PYTHON:-.venv-vllm/bin/python}
if [[ ! -x $PYTHON ]]; then
  $dry_run || { echo "gpu.sh: there is no $PYTHON; make test-vllm VLLM=vllm makes it" >&2; exit 2; }
  PYTHON=.venv/bin/python
fi
# This tree's code, whatever the environment has installed.
export PYTHONPATH="$PWD" HF_HUB_OFFLINE=1

model=$(mktemp -d)
trap 'rm -rf "$model"' EXIT

if $dry_run; then
  size=tiny
  if "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("vllm") is None)'; then
    # Both on little memory and without a compiler.
    arguments='{"max_model_len": 512, "max_num_seqs": 8, "dtype": "float32", "enforce_eager": true, "kv_cache_memory_bytes": 268435456}'
    run=(--engine-arguments "$arguments")
  else
    run=(--servers tailrace --engine transformers)
  fi
  run+=(--streams 1,4 --requests 2 --rounds 1 --prompt-tokens 16 --max-tokens 16)
else
  nvidia-smi -L >&2 || { echo 'gpu.sh: no NVIDIA GPU here; --dry-run needs none' >&2; exit 2; }
  size=1b
  # Both servers hold their memory all the while. No stream ever waits for another to end.
  run=(--engine-arguments '{"max_model_len": 2048, "max_num_seqs": 256, "gpu_memory_utilization": 0.4}')
  run+=(--streams 16,64,256)
fi

"$PYTHON" -m benchmarks.random_model "$model" --size "$size" >&2
# Ten minutes in all, with the model and a clean end. The interrupt stops both servers.
timeout --foreground --signal INT --kill-after 70 480 \
  "$PYTHON" -m benchmarks.side_by_side --model "$model" --out "$out" "${run[@]}"
echo "figures: $out, table: ${out%.*}.md" >&2
