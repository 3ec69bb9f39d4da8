# Two commands do everything on a fresh machine: `make demo` runs a real optimisation, `make test` passes the tests.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint types down clean

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(VENV)/.run $@

# A real optimisation, start to end: no GPU, no API key, no server of your own.
demo: $(VENV)/.run
	$(BIN)/python client.py start specs/tasks/skinny-gemm-f32-cpu.yaml --local --follow

# Stops the server and the worker that `make demo` leaves running for the Temporal UI.
down:
	$(BIN)/python client.py down

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

# The one check command: style, types, tests. CI calls it too.
test: lint types
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
