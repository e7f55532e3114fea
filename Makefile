# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup test quick lint types unit docs demo bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'swad needs Python 3.11 or newer, found ' + sys.version.split()[0])"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e ".[test]"
	touch $@

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

# The site in docs/_build/html, whose examples run. A second build reads only what has changed.
docs: .venv/docs
	$(BIN)/python -m sphinx -W --keep-going docs docs/_build/html

.venv/docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e ".[docs]"
	touch $@

demo: setup
	$(BIN)/swad demo

bench: setup
	$(BIN)/python benchmarks/averaging.py

clean:
	rm -rf .venv demo runs
