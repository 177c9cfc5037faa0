PYTHON ?= python
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install lock check format lint types imports test test-quick sample picture bench bench-quick accuracy accuracy-quick fuzz clean

help:  ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

install:  ## jitter and its tools, as locked, into the active environment
	$(PYTHON) -m pip install --quiet --upgrade 'pip>=25.1'
	$(PYTHON) -m pip install --quiet --constraint requirements.lock --editable . --group dev

lock:  ## write requirements.lock from the active environment
	$(PYTHON) -m pip freeze --exclude-editable > requirements.lock

check: format lint types imports test  ## all that CI asks

format:  ## formatting as ruff has it
	$(PYTHON) -m ruff format --check .

lint:  ## ruff's rules
	$(PYTHON) -m ruff check .

types:  ## mypy, strict
	$(PYTHON) -m mypy

imports:  ## the direction of imports
	lint-imports

test:  ## the tests; real traces if JITTER_TRACES names their folder
	$(PYTHON) -m pytest -n $(JOBS) --dist worksteal

test-quick:  ## what to run while writing, under a minute: no browser, no notebooks, nothing that starts many processes
	$(PYTHON) -m pytest -q -n $(JOBS) --dist worksteal -m 'not slow' \
		--ignore tests/accuracy --ignore tests/end_to_end --ignore tests/notebooks

sample:  ## make data/sample anew
	$(PYTHON) -m jitter sample data/sample --force --quiet --ranks 8 --gpus-per-node 4 --steps 5 --first-step 2000 \
		--kernels 60 --seed 7 --fault cpu_stall:rank=5,step=2003,kernel=17,ms=1.5

picture: PLACE = /tmp/jitter-picture
picture:  ## make data/report.png anew: the page on the sample, as Chromium shows it
	rm -rf $(PLACE) && mkdir -p $(PLACE) && cp -r data/sample $(PLACE)/traces
	cd $(PLACE) && $(PYTHON) -m jitter ingest traces --quiet && $(PYTHON) -m jitter report --html
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --disable-background-networking \
		--user-data-dir=$(PLACE)/profile --virtual-time-budget=8000 --window-size=1200,1760 \
		--screenshot=$(CURDIR)/data/report.png file://$(PLACE)/jitter-report.html
	rm -rf $(PLACE)

bench:  ## PyTorch traces against HTA, 960 nsys exports against the talk's way, answers from a lake: two hours, 10 GB of disk, 6 GB of memory
	$(PYTHON) -m venv build/hta
	build/hta/bin/pip install --quiet 'HolisticTraceAnalysis==0.5.0' 'pandas<3'
	$(PYTHON) -m tests.bench.kineto --hta-python build/hta/bin/python
	$(PYTHON) -m tests.bench.ingest
	$(PYTHON) -m tests.bench.answers --lake build/bench-lake
	$(PYTHON) -m tests.bench.answers --lake build/bench-lake-gpu --fault slow_gpu:rank=3,factor=1.2 --rounds 1
	$(PYTHON) -m tests.bench.growth --lake build/bench-lake

bench-quick:  ## the same on a tenth of the size and less, without HTA
	$(PYTHON) -m tests.bench.kineto --quick
	$(PYTHON) -m tests.bench.ingest --quick
	$(PYTHON) -m tests.bench.answers --quick
	$(PYTHON) -m tests.bench.growth --quick

accuracy:  ## how often the analysis is right: hundreds of simulated jobs, known faults, a table
	$(PYTHON) -m tests.accuracy --processes $(JOBS)

accuracy-quick:  ## the tenth of them that the tests take
	$(PYTHON) -m tests.accuracy --quick --processes $(JOBS)

fuzz:  ## damage a PyTorch trace in thousands of ways
	$(PYTHON) -m tests.readers.kineto.fuzz 5000

clean:  ## remove what tools left
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
