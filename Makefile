# `make demo` and `make test` do their whole set-up by themselves; see .ci/setup.

.PHONY: help setup demo chaos test test-integrations test-full test-full-most test-full-integrations evidence prove mutants lint format types
.PHONY: tests-side-by-side tests-with-spark integrations-side-by-side integrations-with-spark
.PHONY: bench bench-audit soak fuzz model clean
.DEFAULT_GOAL := help

BIN := .venv/bin
RUNS := $(CURDIR)/build/runs
export RELIAMSG_RUNS := $(RUNS)
# Tests start hundreds of processes: with everything compiled once, each begins in half the time. Also where the
# environment forbids Python to write beside the sources.
test test-integrations test-full test-full-most test-full-integrations evidence bench bench-audit soak: export PYTHONDONTWRITEBYTECODE :=
test test-integrations test-full test-full-most test-full-integrations evidence bench bench-audit soak: export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

help:  ## What there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup:  ## Debian packages (as root) and the virtual environment; nothing twice
	@bash .ci/setup

demo: setup  ## Kill a site and a consumer, and see what is lost (nothing)
	@$(BIN)/reliamsg demo

chaos: setup  ## All scenarios of the chaos laboratory once, as root; reports and pictures in build/chaos
	@rm -rf build/chaos
	@$(BIN)/reliamsg lab chaos run all --json --dir build/chaos

test: setup  ## All tests at small sizes, about 10 minutes on 2 cores
	@rm -rf $(RUNS) && mkdir -p $(RUNS)
	@$(MAKE) --no-print-directory --keep-going -j 2 tests-side-by-side tests-with-spark

test-integrations: setup  ## What make test has no time for: brokers and Spark for minutes, more seeds; at most 20 minutes
	@mkdir -p build
	@$(MAKE) --no-print-directory --keep-going -j 2 integrations-side-by-side integrations-with-spark

test-full: setup  ## All tests at full sizes, at most two hours
	@$(MAKE) --no-print-directory --keep-going test-full-most test-full-integrations

test-full-most:
	@rm -rf $(RUNS) && mkdir -p $(RUNS)
	@$(MAKE) --no-print-directory --keep-going SIZE=--full WORKERS=2 tests-side-by-side tests-with-spark

test-full-integrations:
	@mkdir -p build
	@$(MAKE) --no-print-directory --keep-going SIZE=--full WORKERS=2 integrations-side-by-side integrations-with-spark

evidence: setup  ## All that shows what this state is worth, in several sittings: ONLY=seeds,fuzz MINUTES=30 JOBS=2
	@VIRTUAL_ENV=$(CURDIR)/.venv $$(command -v uv || echo $(BIN)/uv) pip install -q --group fuzz
	@$(BIN)/python -m tests.evidence.run $(if $(ONLY),--only $(ONLY)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(JOBS),--jobs $(JOBS))

# Most tests wait most of the time, so that there are more workers than processors. The journals of the runs on real
# brokers are kept for one of Spark's tests, which comes last and waits for the file that says that all are there:
# tests/audited.py, or here, if a worker did not live to say so.
WORKERS := 4
tests-side-by-side:
	@$(BIN)/python -m pytest $(SIZE) -n $(WORKERS) --dist worksteal -m 'not spark and not integrations'; \
	status=$$?; touch $(RUNS)/complete; exit $$status

# In one process, since each start of Spark takes longer than most of its tests, and with lower priority: it would take
# all processors. What it says comes when it has ended, and not between the lines of the others. Only the directories
# that have such tests are looked through; tests/spark.py, in the other half, sees to it that these are all.
tests-with-spark:
	@nice -n 5 $(BIN)/python -m pytest $(SIZE) -m 'spark and not integrations' tests/audit tests/cli tests/docs > $(CURDIR)/build/spark.txt 2>&1; \
	status=$$?; cat $(CURDIR)/build/spark.txt; exit $$status

integrations-side-by-side:
	@$(BIN)/python -m pytest $(SIZE) -n $(WORKERS) --dist worksteal -m 'integrations and not spark'

integrations-with-spark:
	@nice -n 5 $(BIN)/python -m pytest $(SIZE) -m 'integrations and spark' tests/audit tests/docs > $(CURDIR)/build/spark.txt 2>&1; \
	status=$$?; cat $(CURDIR)/build/spark.txt; exit $$status

prove: setup  ## 20,000 simulated runs, each with its own faults; how often each fault struck
	$(BIN)/reliamsg lab simulate --seeds 0:20000 --jobs 0 --every-fault --json

mutants: setup  ## Deliberate defects in the product, one at a time: each must be convicted for its own reason
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

bench: setup  ## All benchmarks, against other clients in turn; under 20 minutes on 2 cores
	@$(BIN)/python -m benchmarks all --json

bench-audit: setup  ## An audit of ten million messages, timed
	@$(BIN)/python -m benchmarks audit --json

soak: setup  ## Ten minutes at half the peak rate: does memory grow?
	@$(BIN)/python -m benchmarks soak --json

clean:  ## Everything that was made here
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
