# Each target does its own set-up: a virtual environment from requirements.lock and an editable install.
PYTHON ?= python3
CORES ?= all
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo test test-all test-harness slurm-test bench lint format schemas lock clean help

help:  ## Show this help.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "ACP-Bench needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

demo: $(READY)  ## Run the demo study from generated slides to the report.
	snakemake --cores $(CORES) all
	@echo "Report: $(CURDIR)/results/report/index.html"

test: $(READY)  ## Run the tests (under 15 minutes on two cores).
	$(BIN)/python -m pytest -m "not slow and not harness and not slurm"

test-all: $(READY)  ## Run every test, the slow ones and those on SLURM too.
	$(BIN)/python -m pytest -m "not harness"

slurm-test: $(READY)  ## Run the workflow on an emulated SLURM cluster (needs slurm-wlm and munge; else says so).
	$(BIN)/python -m pytest -m slurm -rs tests/slurm

test-harness: $(READY)  ## Run the three real command lines, from npm, against the scripted model (about 15 minutes).
	$(BIN)/python -m pytest -m harness -rs tests/harness_cli

bench: $(READY)  ## Measure against the peers and write benchmarks/RESULTS.md (tens of minutes).
	$(BIN)/python benchmarks/run.py

lint: $(READY)  ## Check style, workflow files, schemas and layering.
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow
	snakemake --lint
	acp-bench schemas --check
	$(BIN)/python -m pytest -q tests/test_layering.py

format: $(READY)  ## Format Python and Snakemake files.
	ruff check --fix --exit-zero .
	ruff format .
	snakefmt Snakefile workflow

schemas: $(READY)  ## Write workflow/schemas/ from the models.
	acp-bench schemas

lock:  ## Resolve requirements.lock anew in a throw-away environment.
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --constraint requirements.in --requirement requirements.in '.[dev]'
	build/lock/bin/python -m pip freeze --all --exclude pip --exclude acpbench > requirements.lock

clean:  ## Remove generated results (recorded runs too).
	rm -rf results/* .snakemake && git checkout -- results/README.md
