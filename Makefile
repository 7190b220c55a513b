# Two commands: `make demo` and `make test`. Each sets up what it needs in $(VENV) the first time.

VENV ?= .venv
PYTHON ?= python3
# Where PyTorch's CPU build comes from; out of reach, pip looks where it always does.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Debian packages that `make test` installs where that needs no question; empty: none.
DEBIAN_PACKAGES ?= prometheus victoria-metrics influxdb chromium fonts-noto-color-emoji faketime
# DEMO_ARGS=--help and TEST_ARGS=--help list what they take.
DEMO_ARGS ?=
TEST_ARGS ?=
export PYTHON TORCH_INDEX

SET_UP = pyproject.toml src/tachograph/version.py scripts/set_up.sh

.PHONY: help demo test lint clean
.DELETE_ON_ERROR:

help:
	@echo "make demo   train on two processes with torchrun, and show what was recorded"
	@echo "make test   run all tests"
	@echo "make lint   check style and types"
	@echo "make clean  remove $(VENV) and what the tools left"

demo: $(VENV)/demo.stamp
	@$(VENV)/bin/python scripts/demo.py $(DEMO_ARGS)

test: $(VENV)/test.stamp
	@sh scripts/debian_packages.sh $(DEBIAN_PACKAGES)
	@$(VENV)/bin/python -m pytest --cov --cov-report=term-missing:skip-covered --cov-fail-under=95 $(TEST_ARGS)

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

clean:
	rm -rf $(VENV) .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
