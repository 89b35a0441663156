# Two commands do everything: `make demo` and `make test`. Each makes its own .venv when it is missing.
# PIP_ARGS passes anything on to pip, PYTHON names the interpreter: make test PYTHON=python3.12 PIP_ARGS="--no-cache-dir"

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt $(PIP_ARGS)

# oneDNN's bf16 products die with SIGILL on some CPUs that announce AMX but cannot run it.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: help demo test lint types unit chaos bench clean

help:  ## This list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*##/\t/' | expand -t 12

demo: $(VENV)/.demo  ## A study of softmax, Balanced Softmax and CBS on long-tailed digits, and its report: two minutes
	$(BIN)/longtail study --data digits-lt --methods softmax balanced-softmax cbs --seeds 5 \
		--epochs 60 --batch-size 32 --nesterov --out runs/demo
	$(BIN)/longtail report runs/demo --out runs/demo/report.html

test: lint types unit  ## Lint, types, doctests and tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

chaos: $(VENV)/.dev  ## Runs killed at twenty random moments, and on a disk that is full: each must end as if nothing happened
	LONGTAIL_CHAOS=20 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s tests/train/test_faults.py

bench: $(VENV)/.dev  ## What CBS costs and how fast images come, on this machine (benchmarks/results has an H200's)
	$(BIN)/python benchmarks/loss.py
	$(BIN)/python benchmarks/contrastive.py
	$(BIN)/python benchmarks/data.py

clean:  ## Remove .venv and what tools leave behind
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.python
	$(INSTALL) -e '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.python
	$(INSTALL) -e '.[dev]'
	touch $@
