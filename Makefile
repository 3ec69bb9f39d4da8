# Two commands do everything on a fresh machine: `make demo` runs a real optimisation, `make test` passes the tests.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test check lint types clean

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.run

demo: $(VENV)/.run
	$(BIN)/python client.py start specs/tasks/skinny-gemm-f32-cpu.yaml --local --follow

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

test: $(VENV)/.dev
	$(BIN)/python -m pytest

# What CI calls.
check: lint types test
