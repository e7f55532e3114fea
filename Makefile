# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt

.PHONY: setup test quick lint types unit docs demo bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e ".[test]"
	touch .venv/demo-ready $@

# What the demo imports, without the rest of what the tests touch.
.venv/demo-ready: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e ".[demo]"
	touch $@

$(BIN)/python:
	$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'swad needs Python 3.11 or newer, found ' + sys.version.split()[0])"
	$(PYTHON) -m venv .venv

test: setup lint types unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: setup
	$(BIN)/mypy

# Two processes: the tests are many small ones, and CI has two cores.
unit: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=10

# The inner loop: no slow tests, no further processes, no browser.
quick: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not distributed and not browser"

# Pages that are written from the code and from the records of benchmarks.
docs: setup
	$(BIN)/python -m swad.cli.train_reference docs/train-options.md
	$(BIN)/python benchmarks/tables.py

demo: .venv/demo-ready
	$(BIN)/swad demo

bench: setup
	$(BIN)/python benchmarks/averaging.py

clean:
	rm -rf .venv demo runs
