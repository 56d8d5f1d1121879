# `make demo` and `make test` do their whole set-up by themselves; see .ci/setup.

.PHONY: help setup demo chaos test test-full prove mutants lint format types bench fuzz model clean
.DEFAULT_GOAL := help

BIN := .venv/bin
RUNS := $(CURDIR)/build/runs
export RELIAMSG_RUNS := $(RUNS)
# Tests start hundreds of processes: with everything compiled once, each begins in half the time. Also where the
# environment forbids Python to write beside the sources.
test test-full bench: export PYTHONDONTWRITEBYTECODE :=
test test-full bench: export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

help:  ## What there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup:  ## Debian packages (as root) and the virtual environment; nothing twice
	@bash .ci/setup

demo: setup  ## Kill a site and a consumer, and see what is lost (nothing)
	@$(BIN)/reliamsg demo

chaos: setup  ## All scenarios of the chaos laboratory once, as root; reports and pictures in build/chaos
	@rm -rf build/chaos
	@$(BIN)/reliamsg chaos run all --json --dir build/chaos

# First everything that runs side by side; most tests wait most of the time, so that there are more workers than
# processors. The journals of the runs on real brokers are kept for the audit's tests, which come last and one at a
# time: Spark takes all processors, and starves whatever runs beside it.
test: setup  ## All tests at small sizes, about 20 minutes on 2 cores
	@rm -rf $(RUNS)
	$(BIN)/python -m pytest -n 4 --dist worksteal -m 'not spark'
	$(BIN)/python -m pytest -m spark

test-full: setup  ## All tests at full sizes, at most an hour
	@rm -rf $(RUNS)
	$(BIN)/python -m pytest --full -n 2 --dist worksteal -m 'not spark'
	$(BIN)/python -m pytest --full -m spark

prove: setup  ## 20,000 simulated runs, each with its own faults; how often each fault struck
	$(BIN)/reliamsg simulate --seeds 0:20000 --jobs 0 --every-fault --json

mutants: setup  ## Deliberate defects in the product, one at a time: the simulator must convict each of them
	$(BIN)/python -m tests.mutants.run --json

lint: setup  ## Style, and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup  ## Put the formatting right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup  ## Types, strictly
	$(BIN)/mypy

fuzz: setup  ## Coverage-guided fuzzing of every decoder, FUZZ_SECONDS=60 for each
	VIRTUAL_ENV=$(CURDIR)/.venv $$(command -v uv || echo $(BIN)/uv) pip install -q --group fuzz
	$(BIN)/python -m tests.fuzz.run

model: setup  ## The protocol as a model, and that variants which break a rule are refuted
	$(BIN)/python -m tests.model.check

bench: setup  ## Throughput against plain pika, repair, and an audit of ten million messages
	$(BIN)/python benchmarks/throughput.py --json
	$(BIN)/python benchmarks/repair.py --json
	$(BIN)/python benchmarks/audit.py --json

clean:  ## Everything that was made here
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
