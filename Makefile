# `make demo` and `make test` create .venv if it does not exist.
# PIP_ARGS are arguments of pip, PYTHON is the interpreter: make test PYTHON=python3.12 PIP_ARGS="--no-cache-dir"

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt $(PIP_ARGS)

# oneDNN's bf16 products die with SIGILL on some CPUs that announce AMX but cannot run it.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: help demo test test-slow test-floor test-slurm test-ray test-cluster lint types unit docs gallery fuzz chaos soak
.PHONY: bench bench-gpu reproduce-cifar10 results-page results-natural dist clean

help:  ## Show this list
	@grep -E '^[a-z0-9-]+:.*##' Makefile | sed -E 's/:.*##/\t/' | expand -t 20

demo: $(VENV)/.demo  ## Compare softmax, Balanced Softmax and CBS on long-tailed digits, and write a report: about a minute
	OMP_NUM_THREADS=1 $(BIN)/longtail demo

test: lint types unit  ## Run lint, type checks, doctests and tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell *.md mkdocs.yml docs examples reproduction results/*.md src tools

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

test-slow: $(VENV)/.dev  ## Run the slow tests that `make test` leaves out
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m slow

# The oldest torch that pyproject.toml allows, for losses and metrics, in a separate environment.
FLOOR := .venv-floor
FLOOR_TESTS := tests/losses tests/metrics tests/test_checks.py tests/test_classes.py tests/test_posthoc.py

test-floor: $(FLOOR)/.installed  ## Test losses and metrics with the oldest supported torch, 2.4
	PYTHONPATH=src OMP_NUM_THREADS=1 $(FLOOR)/bin/python -m pytest -q $(FLOOR_TESTS)

$(FLOOR)/.installed:
	$(PYTHON) -m venv $(FLOOR)
	$(FLOOR)/bin/python -m pip install --disable-pip-version-check -q $(PIP_ARGS) 'torch==2.4.1' 'numpy<2' \
		pytest hypothesis torchmetrics mpmath scipy scikit-learn
	touch $@

CASES ?= 10000
KILLS ?= 1000

fuzz: $(VENV)/.dev  ## Damage every kind of input 10,000 times: each is refused in one sentence or read correctly
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --cases $(CASES)

chaos: $(VENV)/.dev  ## Kill commands at 1,000 random moments and fill the disk: the results must not change
	LONGTAIL_CHAOS=$(KILLS) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s tests/train/test_chaos.py tests/train/test_faults.py

test-slurm: $(VENV)/.dev  ## Start a Slurm cluster of one node, and disturb the workers of a study on it; needs root and Slurm
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s -rs -m slow tests/cluster/test_slurm.py

test-ray: $(VENV)/.dev  ## Run a study on Ray, kill a worker, and hide the folder from Ray: the results must not change
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s -rs -m slow tests/cluster/test_ray.py

soak: $(VENV)/.dev  ## Train 2,000 runs in one process: memory and open files must not grow
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/soak.py

test-cluster: $(VENV)/.dev  ## Kill eight workers 100 times while they share 500 runs: nothing is lost or done twice
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.cluster.soak --claims lock
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.cluster.soak --claims lease

GALLERY := $(patsubst examples/%.py,build/%.png,$(wildcard examples/gallery/[a-z]*.py))

docs: $(VENV)/.dev gallery  ## Build the documentation site into build/site; `python3 -m http.server -d build/site` shows it
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict

gallery: $(GALLERY)  ## Run the scripts of examples/gallery, which draw the figures of the site: about a minute

build/gallery/%.png: examples/gallery/%.py | $(VENV)/.dev
	mkdir -p build/gallery
	OMP_NUM_THREADS=1 $(BIN)/python $< --out build/gallery

bench: $(VENV)/.dev  ## Run the benchmarks that make sense on a CPU: some minutes
	$(BIN)/python benchmarks/loss.py
	$(BIN)/python benchmarks/contrastive.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/own_data.py --only read start
	$(BIN)/python benchmarks/evaluation.py --only stream balance
	$(BIN)/python benchmarks/growth.py

# GPU is part of the file names of the results; RUN is a Python with torch and longtail:
# make bench-gpu GPU=a100 RUN=python3
GPU ?= h200
RUN ?= $(BIN)/python

bench-gpu: $(if $(filter $(BIN)/python,$(RUN)),$(VENV)/.dev)  ## Run all benchmarks on this GPU, and write the tables of docs/speed.md
	$(RUN) benchmarks/loss.py --budget 3 --out benchmarks/results/loss-$(GPU).json
	$(RUN) benchmarks/contrastive.py --out benchmarks/results/contrastive-$(GPU).json
	$(RUN) benchmarks/data.py --rounds 2 --large 8192 --out benchmarks/results/data-$(GPU).json
	$(RUN) benchmarks/own_data.py --images 100000 --out benchmarks/results/own-data-$(GPU).json
	$(RUN) benchmarks/fleet.py --out benchmarks/results/fleet-$(GPU).json
	test -d data/cifar-10-batches-py || $(RUN) -m longtail data get cifar10 || $(RUN) -m reproduction.cifar10_npm
	$(RUN) benchmarks/same_recall.py --out benchmarks/results/same-$(GPU).json
	$(RUN) benchmarks/imagenet.py --augment imagenet-plain imagenet --out benchmarks/results/imagenet-$(GPU).json
	$(RUN) benchmarks/evaluation.py --out benchmarks/results/evaluation-$(GPU).json
	$(RUN) benchmarks/growth.py --out benchmarks/results/growth-$(GPU).json
	$(RUN) benchmarks/draw_growth.py docs/images/growth --gpu $(GPU)
	$(RUN) benchmarks/page.py --gpu $(GPU)

PLANS := $(addprefix results/plans/,cifar10.toml cifar10-lt.toml c10-lt100.toml c10-lt100-tau.toml)

reproduce-cifar10: $(VENV)/.demo  ## Repeat the paper's CIFAR-10 experiments on a GPU, and write results/README.md; resumable
	test -d data/cifar-10-batches-py || $(BIN)/longtail data get cifar10 || $(BIN)/python -m reproduction.cifar10_npm
	$(BIN)/longtail study $(PLANS)
	$(BIN)/longtail study results/plans/digits-lt.toml --device cpu
	$(BIN)/python -m reproduction measure $(patsubst results/plans/%.toml,runs/%,$(PLANS))
	$(MAKE) results-page

results-page: $(VENV)/.demo  ## Write results/README.md, and the table and figure of README.md, from finished runs
	$(BIN)/python -m reproduction page $(PLANS) results/plans/digits-lt.toml --out results --readme README.md

# MINILM is the folder of all-MiniLM-L6-v2, LITE0 the weights of timm's tf_efficientnet_lite0; reproduction/natural.py
# says where the data comes from.
NATURAL := data/natural
MINILM ?= $(NATURAL)/all-MiniLM-L6-v2
LITE0 ?= $(NATURAL)/tf_efficientnet_lite0.safetensors
DECAYS := 0.01 0.1 1

results-natural: $(VENV)/.dev  ## Repeat the results on natural data, and write results/natural.md; resumable
	$(BIN)/python -m reproduction.natural lists $(NATURAL)
	for name in trec goemotions; do test -e $(NATURAL)/$$name.npz || \
		$(BIN)/longtail embed $(NATURAL)/$$name.csv --text text --model $(MINILM) --out $(NATURAL)/$$name.npz; done
	test -e $(NATURAL)/gtsrb.npz || $(BIN)/longtail embed $(NATURAL)/gtsrb.csv --model timm:tf_efficientnet_lite0 \
		--weights $(LITE0) --image-size 64 --split-by track --bad-images skip --out $(NATURAL)/gtsrb.npz
	test -e $(NATURAL)/ham10000.npz || $(BIN)/longtail embed $(NATURAL)/ham10000.csv --model timm:tf_efficientnet_lite0 \
		--weights $(LITE0) --image-size 128 --split-by lesion --out $(NATURAL)/ham10000.npz
	for decay in $(DECAYS); do for name in trec goemotions gtsrb ham10000; do \
		$(BIN)/longtail study results/plans/natural/$$name.toml --weight-decay $$decay \
		--out runs/natural/$$decay/$$name || exit 1; done; done
	$(BIN)/python -m reproduction.natural_baselines runs/natural
	$(BIN)/python -m reproduction.natural page runs/natural results

dist: $(VENV)/.dev  ## Build sdist and wheel in dist/, and check them
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	test -z "$$(find dist -name '*.whl' -size +2M)"

clean:  ## Remove .venv and caches
	rm -rf $(VENV) .venv-floor .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.python
	$(INSTALL) -e '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.python
	$(INSTALL) -e '.[dev]'
	touch $@
