# Everything a person does here. Each target works from a clean clone, in any order, twice.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Not compiled ahead: importing compiles what is used, and an install takes half the time.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	$(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
# While the packages are fetched and unpacked: compiling needs none of them.
COMPILE := $(BIN)/python -m kernels.native
# Triton is of use only beside a GPU; tests install it everywhere and run it interpreted.
comma := ,
GPU_EXTRA := $(if $(shell command -v nvidia-smi),$(comma)gpu)

# Many tests wait, for a process to start or a second to pass: two at once. Each worker has a Postgres
# of its own; a file's tests stay together, as they share what is dear to start. More than one thread each
# would wait for the other worker's. In the order of folders, which is that of how long their files take:
# else files of few tests come last, and one worker is at the longest when the other has nothing left to do.
PYTEST_BY_TWO := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The first start leaves its compiled modules behind; without them every later one takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve test test-slow check format bench bench-scheduler bench-engine bench-gateway bench-batches bench-peers soak clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.runtime ## Run everything on this machine (options: make serve ARGS="--port 9000")
	@exec $(BIN)/sluice serve $(ARGS)

check: $(VENV)/.development ## Format, lint, types, import contracts, unit and property tests (under a minute)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST_BY_TWO) tests/properties tests/unit -m "not slow" -q

test: $(VENV)/.development ## All tests that need no GPU, but the slow ones (under 10 minutes)
	$(PYTEST_BY_TWO) -m "not slow" -q $(ARGS)

test-slow: $(VENV)/.development ## Crash, soak-in-small, browser and fuzz tests (under 40 minutes)
	$(BIN)/python -m pytest -m slow -q $(ARGS)

format: $(VENV)/.development ## Format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.development ## Measure the gateway's overhead, the store's latency, checking keys; prints tables
	$(BIN)/python -m tests.benchmarks.gateway_overhead
	$(BIN)/python -m tests.benchmarks.store_latency
	$(BIN)/python -m tests.benchmarks.key_verification

bench-scheduler: $(VENV)/.development ## What the scheduler claims, beside what is measured (ARGS="flood spike" for parts)
	$(BIN)/python -m tests.benchmarks.scheduler $(ARGS)

bench-peers: $(VENV)/.development ## Ours beside llama.cpp, vLLM and OpenVINO under one load (an hour; ARGS="llama.cpp --runs 1")
	$(BIN)/python -m tests.benchmarks.peers $(ARGS)

bench-engine: $(VENV)/.development ## Where a step's time goes on this CPU, operator by operator, and what each type brings
	$(BIN)/python -m tests.benchmarks.engine $(ARGS)
	$(BIN)/python -m tests.benchmarks.accuracy

bench-batches: $(VENV)/.development ## What batches promise: speed, fifty kills, the real model beside people (ARGS="crashes")
	$(BIN)/python -m tests.benchmarks.batches $(ARGS)

bench-gateway: $(VENV)/.development ## What the gateway promises, with real workers (25 minutes; ARGS="latency saturation")
	$(BIN)/python -m tests.benchmarks.gateway $(ARGS)

soak: $(VENV)/.development ## An hour of mixed load: memory and gauges must stay flat (ARGS="--minutes 5" for less)
	$(BIN)/python -m tests.benchmarks.gateway.soak $(ARGS)

clean: ## Remove the virtual environment and caches; data directories stay
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info

$(VENV)/bin/python:
	@echo "Making $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("Sluice needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(VENV)/bin/python
	@echo "Installing Sluice and what it needs (about a minute the first time)"
	@$(COMPILE) & $(PIP_INSTALL) --editable ".[engine$(GPU_EXTRA)]" && wait $$!
	@touch $@

$(VENV)/.development: pyproject.toml | $(VENV)/bin/python
	@echo "Installing Sluice, what it needs and what its tests need"
	@$(COMPILE) & $(PIP_INSTALL) --editable ".[engine,gpu,dev]" && wait $$!
	@touch $@ $(VENV)/.runtime
