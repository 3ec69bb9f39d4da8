# Two commands do everything on a fresh machine: `make demo` runs a real optimisation, `make test` passes the tests.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Half as many test processes again as there are cores: much of their time is spent waiting.
WORKERS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores + cores / 2)))

.PHONY: demo demo-tune test lint types suite down clean

$(VENV)/.run: pyproject.toml
	@echo "setting up $(VENV), once; about half a minute"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.tune: pyproject.toml
	@echo "setting up $(VENV) for tuning, once; about half a minute"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[tune]'
	touch $(VENV)/.run $@

$(VENV)/.dev: pyproject.toml
	@echo "setting up $(VENV) for development, once; about a minute"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(VENV)/.run $(VENV)/.tune $@

# A real optimisation, start to end: no GPU, no API key, no server of your own.
demo: $(VENV)/.run
	@echo "the run takes a few minutes; Ctrl-C ends the watching, not the run"
	$(BIN)/python client.py start specs/tasks/skinny-gemm-f32-cpu.yaml --local --follow

# The same without a model or a script: a search for the kernel's best parameters on this machine.
demo-tune: $(VENV)/.tune
	@echo "the run takes five to fifteen minutes; Ctrl-C ends the watching, not the run"
	$(BIN)/python client.py start specs/tasks/skinny-gemm-f32-cpu-tune.yaml --local --follow

# Stops the server and the worker that `make demo` leaves running for the Temporal UI.
down:
	$(BIN)/python client.py down

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

# The one check command: style, types, tests; CI calls it too. Types are checked beside the tests, by the core that the
# tests leave idle.
test: lint
	@$(MAKE) --no-print-directory --jobs 2 types suite

# The tests run side by side, since much of their time is spent waiting for the heartbeats of killed workers; the tests
# of one file stay in one process, and tests/conftest.py says which files begin. No bytecode is written: modules that
# tests write under one name within a second could be taken for each other.
suite: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE=1 $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 6 --dist loadfile --no-loadscope-reorder

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
