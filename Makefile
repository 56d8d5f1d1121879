# `make demo` and `make test` set up everything that they need; see .ci/setup.

.PHONY: help setup demo chaos test test-integrations test-full test-full-most test-full-integrations evidence prove mutants lint format types
.PHONY: bytecode tests-side-by-side tests-with-spark integrations-side-by-side integrations-with-spark
.PHONY: bench bench-audit soak fuzz model docs distributions sbom audit-dependencies clean
.DEFAULT_GOAL := help

BIN := .venv/bin
RUNS := $(CURDIR)/build/runs
export RELIAMSG_RUNS := $(RUNS)
# Tests start hundreds of processes. With bytecode compiled once, each starts in half the time, even where the
# environment keeps Python from writing bytecode next to the sources.
bytecode test test-integrations test-full test-full-most test-full-integrations evidence bench bench-audit soak: export PYTHONDONTWRITEBYTECODE :=
bytecode test test-integrations test-full test-full-most test-full-integrations evidence bench bench-audit soak: export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup:  ## Debian packages (as root) and the virtual environment; skips completed steps
	@bash .ci/setup

demo: setup  ## Kill a site and a consumer, and count the lost messages (none)
	@$(BIN)/reliamsg demo

chaos: setup  ## Run all scenarios of the chaos laboratory once, as root; reports and plots in build/chaos
	@rm -rf build/chaos
	@$(BIN)/reliamsg lab chaos run all --json --dir build/chaos

test: setup bytecode  ## All tests at small sizes, about 10 minutes on 2 cores
	@rm -rf $(RUNS) && mkdir -p $(RUNS)
	@$(MAKE) --no-print-directory --keep-going -j 2 tests-side-by-side tests-with-spark

test-integrations: setup bytecode  ## Longer tests with brokers and Spark, and more seeds; at most 20 minutes
	@mkdir -p build
	@$(MAKE) --no-print-directory --keep-going -j 2 integrations-side-by-side integrations-with-spark

test-full: setup bytecode  ## All tests at full sizes, at most two hours
	@$(MAKE) --no-print-directory --keep-going test-full-most test-full-integrations

test-full-most:
	@rm -rf $(RUNS) && mkdir -p $(RUNS)
	@$(MAKE) --no-print-directory --keep-going SIZE=--full WORKERS=2 tests-side-by-side tests-with-spark

test-full-integrations:
	@mkdir -p build
	@$(MAKE) --no-print-directory --keep-going SIZE=--full WORKERS=2 integrations-side-by-side integrations-with-spark

evidence: setup  ## Collect all evidence for this state, in several sessions: ONLY=seeds,fuzz MINUTES=30 JOBS=2 SHARE=1/2
	@VIRTUAL_ENV=$(CURDIR)/.venv $$(command -v uv || echo $(BIN)/uv) pip install -q --group fuzz
	@$(BIN)/python -m tests.evidence.run $(if $(ONLY),--only $(ONLY)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(JOBS),--jobs $(JOBS)) $(if $(SHARE),--share $(SHARE)) $(if $(EVIDENCE),--records $(EVIDENCE))

# In a new checkout, every process of the tests would compile everything for itself, at the same time as the others.
# Two processes do that once; a test that can't be collected is reported afterwards.
COLLECTED := $(CURDIR)/build/pycache/collected
bytecode: setup
	@[ -e $(COLLECTED) ] || { mkdir -p $(dir $(COLLECTED)); \
	for part in 'tests/[a-c]*' 'tests/[d-z]*'; do \
	  $(BIN)/python -m pytest --collect-only -q -p no:cacheprovider $$part > /dev/null 2>&1 & \
	done; wait; touch $(COLLECTED); }

# Most tests spend most of their time waiting, so there are more workers than processors. The journals of the runs on
# real brokers are kept for one of the Spark tests, which runs last and waits for the file `complete`. It is written by
# tests/audited.py, or here if a worker crashed before that.
WORKERS := 4
tests-side-by-side:
	@$(BIN)/python -m pytest $(SIZE) -n $(WORKERS) --dist worksteal -m 'not spark and not integrations'; \
	status=$$?; touch $(RUNS)/complete; exit $$status

# In one process, since starting Spark takes longer than most of its tests, and with lower priority, since it would use
# all processors. Its output is printed at the end, so that it does not mix with that of the other tests. Only the
# directories with such tests are collected; tests/spark.py, in the other half, checks that there are no others.
tests-with-spark:
	@nice -n 5 $(BIN)/python -m pytest $(SIZE) -m 'spark and not integrations' tests/audit tests/cli tests/docs > $(CURDIR)/build/spark.txt 2>&1; \
	status=$$?; cat $(CURDIR)/build/spark.txt; exit $$status

integrations-side-by-side:
	@$(BIN)/python -m pytest $(SIZE) -n $(WORKERS) --dist worksteal -m 'integrations and not spark'

integrations-with-spark:
	@nice -n 5 $(BIN)/python -m pytest $(SIZE) -m 'integrations and spark' tests/audit tests/docs > $(CURDIR)/build/spark.txt 2>&1; \
	status=$$?; cat $(CURDIR)/build/spark.txt; exit $$status

prove: setup  ## Simulate 20,000 runs, each with its own faults
	$(BIN)/reliamsg lab simulate --seeds 0:20000 --jobs 0 --every-fault --json

mutants: setup  ## Deliberate defects in the product, one at a time: each must be detected for the right reason
	$(BIN)/python -m tests.mutants.run --json

lint: setup  ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup  ## Fix formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup  ## Check types, strictly, of the tests too
	$(BIN)/mypy

docs: setup  ## Build the documentation site in build/site; broken links and references are errors
	@rm -rf build/site build/doctrees
	@$(BIN)/python -m sphinx -q -W --keep-going -j 2 -d build/doctrees . build/site
	@echo 'build/site/index.html'

distributions: setup  ## Build the wheel and the source distribution in dist, and check them
	@rm -rf dist
	@$(BIN)/python -m build
	@$(BIN)/python -m twine check --strict dist/*

# What users install: the package with all extras, and nothing of the development environment.
DEPENDENCIES := build/dependencies
$(DEPENDENCIES)/installed.txt: pyproject.toml
	@rm -rf $(DEPENDENCIES)
	@uv=$$(command -v uv || echo $(CURDIR)/$(BIN)/uv) && export VIRTUAL_ENV=$(CURDIR)/$(DEPENDENCIES) && \
	$$uv venv -q --python $(BIN)/python $(DEPENDENCIES) && $$uv pip install -q '.[audit,demo,inspect,otel,prometheus,remote,zstd]' && \
	$$uv pip freeze -q | grep -v '^reliamsg' > $@.new && mv $@.new $@

sbom: setup $(DEPENDENCIES)/installed.txt  ## List everything that the package installs, as CycloneDX, in build/sbom.json
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
		-o build/sbom.json $(DEPENDENCIES)/bin/python
	@echo build/sbom.json

audit-dependencies: setup $(DEPENDENCIES)/installed.txt  ## Look all of that up in a database of known vulnerabilities
	@$(BIN)/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r $(DEPENDENCIES)/installed.txt || \
	{ echo 'audit-dependencies: a package is vulnerable, or could not be looked up; see above' >&2; exit 1; }

fuzz: setup  ## Fuzz every decoder, guided by coverage: FUZZ_SECONDS=60 for each
	VIRTUAL_ENV=$(CURDIR)/.venv $$(command -v uv || echo $(BIN)/uv) pip install -q --group fuzz
	$(BIN)/python -m tests.fuzz.run

model: setup  ## Check the model of the protocol, and that variants that break a rule are refuted
	$(BIN)/python -m tests.model.check

bench: setup  ## All benchmarks, alternating with other clients; under 20 minutes on 2 cores
	@$(BIN)/python -m benchmarks all --json

bench-audit: setup  ## Time audits of up to a thousand million messages
	@$(BIN)/python -m benchmarks audit audit-billion audit-disturbed audit-short-ranges audit-rows-apart audit-site-gaps \
		audit-many-streams audit-many-files audit-join audit-increment audit-compacted audit-one-stream audit-follow \
		--json

soak: setup  ## Ten minutes at half the peak rate: does memory grow?
	@$(BIN)/python -m benchmarks soak --json

clean:  ## Remove everything that was built here
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
