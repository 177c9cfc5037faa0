# With Python 3.11+ and make, every target sets up what it needs in .venv, once: stamp files there are remade only when
# pyproject.toml or requirements.lock change. `make TARGET PYTHON=python` uses the active environment as it is.
VENV ?= .venv
CPUS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
JOBS ?= $(shell [ $(CPUS) -lt 8 ] && echo $(CPUS) || echo 8)
ifeq ($(origin PYTHON),undefined)
PYTHON := $(VENV)/bin/python
RUNTIME := $(VENV)/.runtime
DEVELOPMENT := $(VENV)/.development
endif

# keep bytecode where PYTHONDONTWRITEBYTECODE is set, as in containers: else each process that a test starts compiles jitter
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help demo install lock check format lint types imports test test-quick sample notebooks picture bench bench-quick accuracy accuracy-quick fuzz torture torture-quick clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

$(VENV)/bin/python:
	@for python in python3.14 python3.13 python3.12 python3.11 python3 python; do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "making $(VENV) with $$python"; exec $$python -m venv $(VENV); \
		fi; \
	done; echo "no Python 3.11 or newer found" >&2; exit 1

$(VENV)/.runtime: pyproject.toml requirements.lock | $(VENV)/bin/python
	@echo "installing jitter into $(VENV), versions as in requirements.lock"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable .
	@touch $@

$(VENV)/.development: pyproject.toml requirements.lock | $(VENV)/bin/python
	@echo "installing jitter and its development tools into $(VENV), versions as in requirements.lock"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable . --group dev
	@touch $@ $(VENV)/.runtime

install: $(DEVELOPMENT)  ## set up .venv with jitter and its development tools

demo: $(RUNTIME)  ## analyze data/sample: print the findings, write ./jitter-report.html, open it if there is a display
	@$(PYTHON) -m jitter report data/sample -o "$(CURDIR)/jitter-report.html" \
		$(if $(DISPLAY)$(WAYLAND_DISPLAY)$(filter Darwin,$(shell uname)),--open)
	@echo "next: $(dir $(PYTHON))jitter steps"

lock: $(DEVELOPMENT)  ## write requirements.lock from .venv
	$(PYTHON) -m pip freeze --exclude-editable > requirements.lock

check: format lint types imports  ## check format, lint, types and the direction of imports

format: $(DEVELOPMENT)  ## check the format (ruff)
	$(PYTHON) -m ruff format --check .

lint: $(DEVELOPMENT)  ## check the rules (ruff)
	$(PYTHON) -m ruff check .

types: $(DEVELOPMENT)  ## check the types (mypy, strict)
	$(PYTHON) -m mypy

imports: $(DEVELOPMENT)  ## check the direction of imports (import-linter)
	$(PYTHON) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

test: $(DEVELOPMENT)  ## run all tests; JITTER_TRACES and JITTER_EVIDENCE name folders of real recordings
	$(PYTHON) -m pytest -n $(JOBS) --dist worksteal

test-quick: $(DEVELOPMENT)  ## run the unit tests: no browser, no notebooks, nothing that starts many processes
	$(PYTHON) -m pytest -q -n $(JOBS) --dist worksteal -m 'not slow' \
		--ignore tests/accuracy --ignore tests/end_to_end --ignore tests/notebooks

sample: $(RUNTIME)  ## make data/sample anew
	$(PYTHON) -m jitter sample data/sample --force --quiet --ranks 8 --gpus-per-node 4 --steps 5 --first-step 2000 \
		--kernels 60 --seed 7 --fault cpu_stall:rank=5,step=2003,kernel=17,ms=1.5

notebooks: $(DEVELOPMENT)  ## run the notebooks and keep their outputs, figures as PNG
	$(PYTHON) -m tests.notebooks.render

picture: PLACE = /tmp/jitter-picture
picture: JITTER = $(if $(findstring /,$(PYTHON)),$(abspath $(PYTHON)),$(PYTHON)) -m jitter
picture: $(RUNTIME)  ## make data/report.png anew: the page of the sample in Chromium
	rm -rf $(PLACE) && mkdir -p $(PLACE) && cp -r data/sample $(PLACE)/traces
	cd $(PLACE) && $(JITTER) ingest traces --quiet && $(JITTER) report --html
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --disable-background-networking \
		--user-data-dir=$(PLACE)/profile --virtual-time-budget=8000 --window-size=1440,870 \
		--screenshot=$(CURDIR)/data/report.png file://$(PLACE)/jitter-report.html
	rm -rf $(PLACE)

bench: ROUNDS = 3
bench: $(DEVELOPMENT)  ## measure against HTA and pandas, 960 ranks, other shapes: hours, 10 GB of disk, 6 GB of memory; ROUNDS=1 for less
	$(PYTHON) -m venv build/hta
	build/hta/bin/pip install --quiet 'HolisticTraceAnalysis==0.5.0' 'pandas<3'
	$(PYTHON) -m tests.bench.kineto --hta-python build/hta/bin/python --rounds $(ROUNDS)
	$(PYTHON) -m tests.bench.ingest --rounds $(ROUNDS)
	$(PYTHON) -m tests.bench.answers --lake build/bench-lake --rounds $(ROUNDS)
	$(PYTHON) -m tests.bench.answers --lake build/bench-lake-gpu --fault slow_gpu:rank=3,factor=1.2 --rounds 1
	$(PYTHON) -m tests.bench.answers --lake build/bench-lake-node --fault slow_gpu:rank=0-7,factor=1.2 --rounds 1
	$(PYTHON) -m tests.bench.answers --lake build/bench-lake-healthy --fault none --rounds 1
	$(PYTHON) -m tests.bench.forms build/bench-lake --rounds $(ROUNDS)
	$(PYTHON) -m tests.bench.shapes --rounds $(ROUNDS)
	$(PYTHON) -m tests.bench.shapes --autotuned 0.3 --rounds $(ROUNDS)
	$(PYTHON) -m tests.bench.report_growth --rounds $(ROUNDS)
	$(PYTHON) -m tests.bench.tabular --rounds $(ROUNDS)

bench-quick: $(DEVELOPMENT)  ## measure at a tenth of the size, without HTA
	$(PYTHON) -m tests.bench.kineto --quick
	$(PYTHON) -m tests.bench.ingest --quick
	$(PYTHON) -m tests.bench.answers --quick
	$(PYTHON) -m tests.bench.shapes --quick
	$(PYTHON) -m tests.bench.report_growth --quick
	$(PYTHON) -m tests.bench.tabular --quick

accuracy: $(DEVELOPMENT)  ## print how often the analysis is right: hundreds of simulated jobs with known faults
	$(PYTHON) -m tests.accuracy --processes $(JOBS)
	$(PYTHON) -m tests.accuracy --generator irregular --processes $(JOBS)
	$(PYTHON) -m tests.accuracy.comparison --processes $(JOBS)

accuracy-quick: $(DEVELOPMENT)  ## print the same for the tenth of the jobs that the tests use
	$(PYTHON) -m tests.accuracy --quick --processes $(JOBS)
	$(PYTHON) -m tests.accuracy.comparison --pairs 30 --processes $(JOBS)
	$(PYTHON) -m tests.accuracy --generator irregular --quick --processes $(JOBS)

fuzz: $(DEVELOPMENT)  ## read thousands of damaged PyTorch traces, and all cases of which `make test` tries a sample
	$(PYTHON) -m tests.readers.kineto.fuzz 5000
	JITTER_FUZZ=1 $(PYTHON) -m pytest -n $(JOBS) --dist worksteal -m fuzz

torture: $(DEVELOPMENT)  ## kill, mutate and damage: thousands of cases, hours; CASES=N and ONLY=SECTION for a part
	$(PYTHON) -m tests.torture $(if $(ONLY),--only $(ONLY)) $(if $(CASES),--cases $(CASES))

torture-quick: $(DEVELOPMENT)  ## the short part of it that the tests run
	$(PYTHON) -m tests.torture --quick

clean:  ## remove caches and build outputs, and .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache $(VENV)
