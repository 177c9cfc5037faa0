PYTHON ?= python
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install lock check format lint types imports test sample clean

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
	$(PYTHON) -m pytest -n $(JOBS)

sample:  ## make data/sample anew
	$(PYTHON) -m jitter sample data/sample --force --quiet --ranks 8 --gpus-per-node 4 --steps 5 --first-step 2000 \
		--kernels 60 --seed 7 --fault cpu_stall:rank=5,step=2003,kernel=17,ms=1.5

clean:  ## remove what tools left
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
