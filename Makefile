# One way in: every target sets up what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_PROCESSES ?= 2 # more of them make tests that wait for each other's workers too slow on few cores

.PHONY: setup demo test test-slow check format verify bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

demo: $(STAMP)  ## the main job on data that ships with the package
	$(BIN)/paceline compare

test: $(STAMP)  ## every feature once, in minutes
	$(BIN)/python -m pytest -m "not slow" -n $(TEST_PROCESSES) --dist loadfile

test-slow: $(STAMP)  ## the rest: full products, clusters, browsers, long property tests
	$(BIN)/python -m pytest -m slow -n $(TEST_PROCESSES) --dist loadfile

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

verify: $(STAMP)  ## the equivalence certificate for every strategy
	$(BIN)/paceline verify

bench: $(STAMP)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/ring.py
	$(BIN)/python benchmarks/precision.py
	$(BIN)/python benchmarks/dataflow.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
