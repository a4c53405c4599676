# ragbench: `make demo` runs the benchmark, `make test` tests everything that needs no system packages.
# Needs Python 3.11 to 3.13, make, git and the package registry; everything is installed into .venv.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
KILLS ?= 200

# `make demo PYTHON=/path/to/python3.12` overrides; otherwise the first of these that is 3.11 to 3.13
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	if $$p -c '$(SUPPORTED)' >/dev/null 2>&1; then echo $$p; break; fi; done)

# Stamps carry a checksum of what decides the installation, so an unchanged one is not repeated.
WANTED := $(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
OFFLINE := $(VENV)/.installed-offline-$(WANTED)
DEV := $(VENV)/.installed-dev-$(WANTED)
# errors are shown, warnings about the local configuration of pip are not
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
# an environment whose making was interrupted has none
HAS_PIP := $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null

# No test may reach for a model hub, and workers of one thread each do not compete for cores.
TEST_ENV := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false MPLBACKEND=agg
step = @printf '\n== %s\n' "$(1)"

.PHONY: help demo test test-all test-system coverage docs clean

help: ## what can be made
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(OFFLINE) ## set up, run the benchmark on datasets/procedures, print the leaderboard, write report.html
	$(call step,demo)
	@$(BIN)/ragbench demo

test: $(DEV) ## set up, then checks, ruff, types, notebooks and pytest
	$(call step,checks: exported modules; notebooks; README; rooms)
	@$(BIN)/python tools/check.py
	$(call step,checks: pages of the site)
	@$(BIN)/python tools/check.py docs
	$(call step,ruff)
	@$(BIN)/ruff check
	$(call step,types)
	@$(BIN)/mypy
	$(call step,notebooks ($(WORKERS) at a time), and their stored outputs)
	@$(TEST_ENV) OMP_NUM_THREADS=1 $(BIN)/python tools/outputs.py --n_workers $(WORKERS) --timing
	$(call step,pytest)
	@$(TEST_ENV) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not system and not slow"

test-all: test ## test, then findings, benchmarks and what is slow (installs the libraries that we compare with)
	$(call step,installing the peers)
	@$(PIP) install -c constraints.txt -e ".[offline,dev,peers]"
	$(call step,findings and benchmarks: smoke runs)
	@for folder in findings benchmarks; do \
		$(TEST_ENV) OMP_NUM_THREADS=1 $(BIN)/nbdev_test --path nbs/$$folder --ignore_fname none --n_workers 1 --timing; done
	$(call step,slow notebooks)
	@$(TEST_ENV) OMP_NUM_THREADS=1 $(BIN)/nbdev_test --flags slow --n_workers $(WORKERS) --timing
	$(call step,slow tests and every extra in its own environment)
	@$(TEST_ENV) $(BIN)/python -m pytest -m "slow and not system"
	$(call step,mutants: every change of the algebra of spans is noticed)
	@$(TEST_ENV) $(BIN)/python tools/mutants.py core.spans
	$(call step,the long fault harness: $(KILLS) kills)
	@$(TEST_ENV) RAGBENCH_KILLS=$(KILLS) $(BIN)/python -m pytest -m faults tests/test_kill.py

# command:package, for Debian and its like
SYSTEM := chromium:chromium chromedriver:chromium-driver tesseract:tesseract-ocr

test-system: $(DEV) ## what needs Debian packages (Chromium, Tesseract); installs them where it can
	$(call step,system packages)
	@missing=""; \
	for pair in $(SYSTEM); do \
		command -v "$${pair%%:*}" >/dev/null || missing="$$missing $${pair##*:}"; \
	done; \
	if [ -z "$$missing" ]; then echo "all there"; exit 0; fi; \
	if ! command -v apt-get >/dev/null; then \
		echo "Missing:$$missing. There is no apt-get here: install them by your system's own means." >&2; exit 1; fi; \
	if [ "$$(id -u)" = 0 ]; then sudo=""; \
	elif sudo -n true 2>/dev/null; then sudo="sudo -n"; \
	else echo "Missing:$$missing. Run as root: apt-get install$$missing" >&2; exit 1; fi; \
	echo "installing$$missing"; \
	log="$$(mktemp)"; \
	{ $$sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq && \
	  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	} >"$$log" 2>&1 || { tail -n 30 "$$log" >&2; echo "apt-get could not install:$$missing" >&2; exit 1; }; \
	rm -f "$$log"
	$(call step,system tests)
	@$(TEST_ENV) $(BIN)/python -m pytest -m system || { status=$$?; \
		if [ $$status = 5 ]; then echo "No system test was found: that is an error here." >&2; fi; exit $$status; }

coverage: $(DEV) ## which lines of the package chapters and tests run, by room, into CONTRIBUTING.md (an hour)
	$(call step,coverage of chapters and tests)
	@WRITE=1 WORKERS=$(WORKERS) $(BIN)/python tools/covered.py

docs: $(DEV) ## the documentation site in _docs (needs Quarto)
	$(call step,documentation)
	@command -v quarto >/dev/null || { echo "Quarto is not installed: see https://quarto.org/docs/get-started" >&2; exit 1; }
	@$(BIN)/python tools/check.py sidebar --write
	@touch README.md # newer than its notebook, so that nbdev leaves it alone: tools/readme.py makes it
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=tools nbdev_docs

clean: ## remove what was made, .venv included; results in .ragbench/ stay
	rm -rf $(VENV) _docs _proc build dist report.html .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage*
	find . -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -not -path './.git/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11, 3.12 or 3.13 was found. Install one, or name it: make demo PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@$(PYTHON) -c '$(SUPPORTED)' 2>/dev/null || { \
		echo "$(PYTHON) is not Python 3.11 to 3.13. Name another: make demo PYTHON=/path/to/python3.11" >&2; exit 1; }
	@printf '\n== %s with %s\n' "$(VENV)" "$$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
		echo "python -m venv failed. On Debian and Ubuntu: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }

$(OFFLINE): | $(BIN)/python
	$(call step,installing ragbench (the first time: a few minutes and about 3 GB))
	@$(HAS_PIP)
	@$(PIP) install -c constraints.txt -e ".[offline]"
	@rm -f $(VENV)/.installed-*
	@touch $@

$(DEV): | $(BIN)/python
	$(call step,installing ragbench with what its tests need (the first time: a few minutes and about 3 GB))
	@$(HAS_PIP)
	@$(PIP) install -c constraints.txt -e ".[offline,dev]"
	@$(BIN)/python -m pip check --disable-pip-version-check
	@rm -f $(VENV)/.installed-*
	@touch $(OFFLINE) $@
