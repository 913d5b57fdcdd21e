# `make demo` and `make test`, on a machine with Python 3.11 and make: environment and installation included.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# loadfile: tests of one file share what their fixtures trained.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile

.PHONY: demo habitat check test campaign coverage lint types install clean

demo: install
	$(BIN)/wildood demo

# A year of a detector in service, in some minutes: new digits appear, the camera changes, and the detector follows.
habitat: install
	OMP_NUM_THREADS=1 $(BIN)/python examples/habitat_digits.py

# What to run while working: everything but slow tests, in about a minute.
check: lint types
	$(PYTEST) -m "not slow and not campaign"

# What a change must pass: everything but campaigns. It names the tests that are skipped, as that of
# the page without Chromium.
test: lint types
	$(PYTEST) -rs

# Hundreds of kills and draws, by hand before a release.
campaign: install
	$(PYTEST) -m campaign

coverage: install
	$(PYTEST) --cov --cov-report=term:skip-covered

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("wildood needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
