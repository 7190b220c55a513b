# `make demo` and `make test`, with its parts. Each sets up what it needs in $(VENV) the first time.

VENV ?= .venv
PYTHON ?= python3
# Version of PyTorch, such as 2.15.0; empty: the one that CI tests. Give each version a VENV of its own.
TORCH ?=
# Source of PyTorch's CPU build; out of reach, pip looks where it always does.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Debian packages that `make test` installs where that needs no question; empty: none.
DEBIAN_PACKAGES ?= prometheus victoria-metrics influxdb chromium-headless-shell fonts-noto-color-emoji faketime
# DEMO_ARGS=--help and TEST_ARGS=--help list what they take.
DEMO_ARGS ?=
TEST_ARGS ?=
# Entries of `make matrix`, such as 3.13 3.11-lowest; empty: each CPython that pyproject.toml names, and the lowest
# versions of all dependencies. And the folders of tests that each runs.
MATRIX ?=
MATRIX_TESTS ?= tests/unit tests/process
# Tests beside each other: they wait more than they compute.
WORKERS ?= 6
export PYTHON TORCH TORCH_INDEX WORKERS MATRIX_TESTS

SET_UP = pyproject.toml src/tachograph/version.py scripts/set_up.sh

.PHONY: help demo test quick long bridges-newest docs matrix release-check lint clean
.DELETE_ON_ERROR:

help:
	@echo "make demo   train on two processes with torchrun, and print a table of what was recorded"
	@echo "make test   run all tests that a change must pass, and measure coverage"
	@echo "make quick  run the tests that start no process or server (about a minute)"
	@echo "make long   run the tests that take minutes, and all Hypothesis examples"
	@echo "make bridges-newest"
	@echo "            run the tests of bridges with the newest libraries, in $(VENV)-newest"
	@echo "make docs   build the pages of docs/ as a site, in docs/_build/html; a warning is an error"
	@echo "make matrix run unit and process tests on every installed CPython, with the lowest and newest dependencies"
	@echo "make release-check"
	@echo "            build and install a release the way a user would, and test it"
	@echo "make lint   check style and types"
	@echo "make clean  remove $(VENV), $(VENV)-*, and build output"

demo: $(VENV)/demo.stamp
	@$(VENV)/bin/python scripts/demo.py $(DEMO_ARGS)

test: $(VENV)/test.stamp
	@sh scripts/debian_packages.sh $(DEBIAN_PACKAGES)
	@sh scripts/suite.sh $(VENV)/bin/python test $(TEST_ARGS)

quick: $(VENV)/test.stamp
	@env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/python -m pytest --numprocesses=2 --dist=loadscope -m "not process and not long" $(TEST_ARGS) tests/unit

long: $(VENV)/test.stamp
	@sh scripts/debian_packages.sh $(DEBIAN_PACKAGES)
	@sh scripts/suite.sh $(VENV)/bin/python long $(TEST_ARGS)

bridges-newest:
	@env -u PYTHONDONTWRITEBYTECODE sh scripts/bridges_newest.sh $(VENV)-newest $(TEST_ARGS)

docs: $(VENV)/docs.stamp
	@$(VENV)/bin/python -m sphinx --fail-on-warning --keep-going --quiet -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "docs/_build/html/index.html"

matrix: $(VENV)/release.stamp
	@sh scripts/matrix.sh $(VENV)/bin/python $(VENV)-matrix $(MATRIX)

release-check: $(VENV)/release.stamp
	@$(VENV)/bin/python scripts/release_check.py

lint: $(VENV)/test.stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

$(VENV)/demo.stamp: $(SET_UP)
	@sh scripts/set_up.sh $(VENV) demo
	@touch $@

$(VENV)/test.stamp: $(SET_UP)
	@sh scripts/set_up.sh $(VENV) demo test lint
	@touch $(VENV)/demo.stamp $@

# Beside the tests' packages: Sphinx imports the package to read its docstrings.
$(VENV)/docs.stamp: $(VENV)/test.stamp
	@$(VENV)/bin/python -m pip install --quiet --group docs
	@touch $@

$(VENV)/release.stamp: $(VENV)/test.stamp
	@$(VENV)/bin/python -m pip install --quiet --group release
	@touch $@

clean:
	rm -rf docs/_build $(VENV) $(VENV)-newest $(VENV)-matrix .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
