# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt

.PHONY: setup test quick lint types unit floor package docs tables demo bench clean

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

# What the library promises without the testbed.
LIBRARY := $(wildcard tests/averaging tests/tensors tests/integrations tests/merging tests/test_compat.py) \
	tests/util/test_files.py tests/util/test_names.py tests/test_imports.py
DOCTESTS := $(wildcard src/swad/averaging src/swad/tensors src/swad/integrations src/swad/merging src/swad/compat.py)

# The library on the oldest torch that it allows, with the oldest trainers. Not a part of `make test`: torch alone is 5 GB.
floor: .venv-floor/ready
	.venv-floor/bin/python -m pytest -n 2 --dist worksteal -rs $(LIBRARY) $(DOCTESTS)

.venv-floor/ready: pyproject.toml constraints-floor.txt
	test -x .venv-floor/bin/python || $(PYTHON) -m venv .venv-floor
	.venv-floor/bin/python -m pip install --disable-pip-version-check -q -c constraints-floor.txt \
		-e ".[lightning,transformers]" timm torchvision pytest pytest-xdist hypothesis
	touch $@

# Build wheel and source distribution, and test the library of the wheel with the tests of the source distribution. Torch
# and the tools of the tests come from .venv through a path file, so its own swad, which is this checkout, does not.
PURELIB := -c "import sysconfig; print(sysconfig.get_path('purelib'))"
package: setup
	test -x .venv-package/bin/python || $(BIN)/python -m venv .venv-package
	.venv-package/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt build twine
	rm -rf dist build .venv-package/source
	.venv-package/bin/python -m build
	.venv-package/bin/python -m twine check --strict dist/*
	.venv-package/bin/python -m pip install --disable-pip-version-check -q --no-deps --force-reinstall dist/*.whl
	$(BIN)/python $(PURELIB) > "$$(.venv-package/bin/python $(PURELIB))/shared.pth"
	mkdir .venv-package/source
	tar -xzf dist/*.tar.gz --strip-components 1 -C .venv-package/source
	rm -r .venv-package/source/src
	cd .venv-package/source && ../bin/python -c "import swad; print(swad.__file__, swad.SWAD)"
	cd .venv-package/source && ../bin/python -m pytest -n 2 --dist worksteal -o pythonpath="tests benchmarks" $(LIBRARY)

# The tables of README and docs, from the records of benchmarks.
tables: setup
	$(BIN)/python benchmarks/tables.py

# The site in docs/_build/html, whose examples run. A second build reads only what has changed.
docs: .venv/docs
	$(BIN)/python -m sphinx -W --keep-going docs docs/_build/html

.venv/docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e ".[docs]"
	touch $@

demo: .venv/demo-ready
	$(BIN)/swad demo

bench: setup
	$(BIN)/python benchmarks/averaging.py

clean:
	rm -rf .venv .venv-floor .venv-package build dist demo runs
