# Two commands are enough: `make compare` and `make test`. Needs make and Python 3.11 or newer, nothing else.
#
#   PYTHON=python3.12      the interpreter that .venv is made from
#   ARGS='key=value ...'   overrides for `make compare`, e.g. ARGS='trace=azure_conv load=1.2'; options for `make pytest`
#   PDGYM_DATA=DIR         the folder of public traces and measurements; by default a folder shared/data beside
#                          the checkout where there is one. Without it the traces that ship with the project remain.

PYTHON ?= python3
ARGS ?=

shared_data := $(wildcard ../shared/data/.)
ifneq ($(shared_data),)
PDGYM_DATA ?= $(abspath ../shared/data)
endif
ifneq ($(PDGYM_DATA),)
export PDGYM_DATA
endif

venv := .venv/bin/python
pip_install := $(venv) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help compare test lint format types pytest slow ui constraints clean

help:  ## this list
	@grep -E '^[a-z-]+:.*  ## ' Makefile | sed -E 's/^([a-z-]+):[^#]*  ## /make \1\t/' | expand -t 20

compare: .venv/core.stamp  ## install the core, compare the rules on the default trace, write table and report
	$(venv) -m research.compare $(ARGS)

test: .venv/dev.stamp  ## install the development extras, run lint, types and tests
	@$(MAKE) --no-print-directory --keep-going lint types pytest

lint: .venv/dev.stamp  ## ruff: rules and format
	$(venv) -m ruff check --quiet .
	$(venv) -m ruff format --check --quiet .

types: .venv/dev.stamp  ## mypy --strict
	$(venv) -m mypy

pytest: .venv/dev.stamp  ## the tests without the slow ones
	$(venv) -m pytest -q $(ARGS)

slow: .venv/dev.stamp  ## only the slow tests
	$(venv) -m pytest -q -m slow

format: .venv/dev.stamp  ## let ruff mend what it can
	$(venv) -m ruff check --quiet --fix .
	$(venv) -m ruff format --quiet .

ui: .venv/ui.stamp  ## install the tracking web page (the extra `ui`)
	@echo "now: $(venv) -m mlflow ui --workers 1 --backend-store-uri sqlite:///PATH_THAT_THE_STUDY_PRINTED"

constraints:  ## resolve every extra anew and pin what came out
	rm -rf build/resolve && $(PYTHON) -m venv build/resolve
	build/resolve/bin/python -m pip install --quiet --dry-run --ignore-installed --report build/resolve/report.json '.[dev,ops,ui]'
	$(PYTHON) .ci/constraints.py build/resolve/report.json > build/resolve/constraints.txt
	mv build/resolve/constraints.txt constraints.txt

clean:  ## remove the environment, caches and build leftovers (results stay)
	rm -rf .venv build dist pdgym.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment for all: a stamp a level, so that a second `make compare` installs nothing.
$(venv):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "pdgym needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Say make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

.venv/core.stamp: pyproject.toml constraints.txt | $(venv)
	@echo "installing pdgym's core into .venv (once; a minute or two)"
	@$(pip_install) --editable .
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt | $(venv)
	@echo "installing the development extras into .venv, torch among them (once; some minutes)"
	@$(pip_install) --editable '.[dev]'
	@touch .venv/core.stamp $@

.venv/ui.stamp: .venv/core.stamp
	@$(pip_install) --editable '.[ui]'
	@touch $@
