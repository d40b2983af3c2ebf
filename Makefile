# Each target sets up a local environment first (.venv, made once), says what it does, and works from a fresh clone.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-by-make
WITH_TORCH := $(VENV)/.torch-installed-by-make
ENGINES := .venv-engines
WITH_ENGINES := $(ENGINES)/.installed-by-make
RIG := tests/engines/rig

.DEFAULT_GOAL := help
.PHONY: help demo test test-engines bench check-fast check-bounds

help:  ## say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

# PYTHON=... chooses the interpreter; else the first of these that fits.
$(INSTALLED): pyproject.toml constraints.txt
	@set -eu; \
	if [ ! -x $(BIN)/python ]; then \
	  for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	    if "$$candidate" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; \
	    then found="$$candidate"; break; fi; \
	  done; \
	  if [ -z "$${found:-}" ]; then \
	    echo "endcast needs Python 3.11 to 3.13 with its venv module, and none is on the PATH." >&2; \
	    echo "Install one (Debian, Ubuntu: apt install python3 python3-venv), or name one: make PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	  fi; \
	  echo "== making $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; \
	fi
	@echo "== installing endcast and what its checks need into $(VENV), as constraints.txt pins it"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Tests of networks need torch and transformers, which nothing else does.
$(WITH_TORCH): $(INSTALLED)
	@echo "== installing torch and transformers"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,text]'
	@touch $@

demo: $(INSTALLED)  ## from a synthetic log to served forecasts and simulated routing, in a few minutes
	@$(BIN)/endcast demo --out demo-out

test: $(WITH_TORCH)  ## all checks that CI runs
	@echo "== style (ruff)";              $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "== types (mypy, strict)";      $(BIN)/mypy
	@echo "== who imports whom";          $(BIN)/lint-imports
	@echo "== tests, documentation's commands among them"; $(BIN)/python -m pytest -n auto --maxprocesses 4 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder --durations=15

# An environment of its own: what vLLM pins is not what endcast pins.
$(WITH_ENGINES): $(INSTALLED) $(RIG)/setup.sh $(RIG)/tiny_models.py $(RIG)/lockstep_on_cpu.py
	@echo "== installing vLLM for CPU into $(ENGINES), 4 GB, and making tiny models"
	@$(RIG)/setup.sh $(BIN)/python $(ENGINES)
	@touch $@

test-engines: $(WITH_ENGINES)  ## the router in front of real vLLM on CPU, in half an hour; needs 8 GB of memory
	@ENDCAST_ENGINES=$(CURDIR)/$(ENGINES) $(BIN)/python -m pytest tests/engines --durations=0

check-fast: $(WITH_TORCH)  ## style, types, imports and the quick tests, up to the first failure
	@echo "== style, types, imports";     $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports
	@echo "== quick tests";               $(BIN)/python -m pytest -q -x -m "not slow"

check-bounds: $(WITH_TORCH)  ## the tests with every array access of compiled code checked, in half an hour
	@NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/$(VENV)/bounds-checked $(BIN)/python -m pytest -q -n auto --maxprocesses 4 \
	  --dist loadfile

# Those that need nothing; what the others need (a log, a bundle, engines), their --help says.
BENCHMARKS := router olp admission forecasts output_reader training service client

bench: $(WITH_TORCH)  ## measure speed on this machine; nothing fails
	@set -eu; for name in $(BENCHMARKS); do echo "== benchmarks/bench_$$name.py"; $(BIN)/python benchmarks/bench_$$name.py; done
