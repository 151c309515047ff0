# Two commands do everything on a machine with Python 3.11+ and make:
#   make demo   own environment, base install and examples, cu12 or cu13 where a driver is found; runs the main job
#   make test   adds what the tests need (aot, or cu12 / cu13 where a driver is found); runs all that can run here
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= auto
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# The extra that fits this machine's driver (cu12, cu13, or empty); asks the dynamic loader, imports no CUDA.
EXTRA = $(shell DEVKERNELS_QUIET=1 DEVKERNELS_TARGET=sim $(PYTHON) -m devkernels.env_report --extra)
PYTEST = $(PY) -m pytest

.PHONY: demo test test-sim test-aot test-rest test-gpu lint bench clean

demo: $(VENV)/.demo
	$(PY) examples/ecg_filter.py

$(PY):
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "devkernels needs Python 3.11 or newer; say make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(PY)
	$(PIP) install -q -e ".[examples$(addprefix $(comma),$(EXTRA))]"
	touch $@

$(VENV)/.test: pyproject.toml | $(PY)
	$(PIP) install -q -e ".[test,examples,$(or $(EXTRA),aot)]"
	touch $@

comma := ,

# One process for each home, because a process has one. All of them run, whatever the first ones say.
test: $(VENV)/.test
	$(MAKE) --keep-going --no-print-directory test-sim test-aot test-rest $(if $(EXTRA),test-gpu)

test-sim: $(VENV)/.test
	DEVKERNELS_TARGET=sim $(PYTEST) -n $(WORKERS) tests/sim

test-aot: $(VENV)/.test
	DEVKERNELS_TARGET=sm_90 $(PYTEST) -n $(WORKERS) tests/aot

# The rest needs no GPU; where there is one, the simulator is asked for, and test-gpu runs what needs a GPU.
test-rest: $(VENV)/.test
	$(if $(EXTRA),DEVKERNELS_TARGET=sim )$(PYTEST) -n $(WORKERS) tests --ignore=tests/sim --ignore=tests/aot --ignore=tests/gpu

test-gpu: $(VENV)/.test
	DEVKERNELS_TARGET=gpu $(PYTEST) -n $(WORKERS) --dist worksteal -m gpu --summary bench/results/gpu_tests.json

lint: | $(PY)
	$(PIP) install -q -e ".[dev]"
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

bench: $(VENV)/.demo
	$(PY) bench/run.py spectral_filter
	$(PY) bench/report.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
