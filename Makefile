# Every target sets up what it needs: Python 3.11+, make and a package index are enough.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
READY := $(VENV)/.ready-$(VERSION)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Compiled modules are kept: tests start hundreds of processes, and each would compile all of holdfast for itself.
unexport PYTHONDONTWRITEBYTECODE

# Tests wait (for processes, servers, leases) more than they compute.
CORES := $(shell nproc 2>/dev/null || echo 2)
WORKERS ?= $(shell echo $$(( $(CORES) * 5 / 2 )))
# Quick ones compute more than they wait, and every worker collects all tests for itself.
QUICK_WORKERS ?= $(shell echo $$(( $(CORES) + 1 )))

# The long tests come first and are handed out a few at a time, so that all workers end at the same time.
ALL_TESTS = $(BIN)/python -m pytest -q -n $(WORKERS) --dist load --maxschedchunk 4

.DEFAULT_GOAL := help
.PHONY: help demo test quick check web temporal browsers newcomer keyvalue redis speed format bench stress postgres coverage clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile

demo: $(READY) ## Run the demonstration
	@$(BIN)/python examples/demo.py

test: $(READY) ## Run the tests, without the slow ones
	@$(ALL_TESTS)

quick: $(READY) ## Run format, lint, types and the tests that need no server and no other process
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy >$(VENV)/types 2>&1 & types=$$!; $(BIN)/python -m pytest -q -n $(QUICK_WORKERS) --quick; tests=$$?; \
	  wait $$types; types=$$?; cat $(VENV)/types; exit $$(( types + tests ))

check: $(READY) ## Run all that must pass before a commit: format, lint, types, tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/basedpyright
	@$(BIN)/python tests/types/verify.py
	@$(ALL_TESTS)
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m slow -k "in_many_worlds and not server" tests/simulation/test_limits.py

web: $(READY) ## Run all tests of the dashboard, of its API on both databases, and of commands over HTTP
	@HOLDFAST_BROWSER=required $(BIN)/python -m pytest -q -n $(WORKERS) -m "web or not web" tests/web
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m web tests/cli

temporal: $(READY) ## Run all tests of the runtime on Temporal, each file on a development server of its own
	@HOLDFAST_TEMPORAL=required $(BIN)/python -m pytest -q -n $(or $(TEMPORAL_WORKERS),2) --dist loadfile -m "temporal or not temporal" tests/temporal
	@$(BIN)/python -m pytest -q -n $(or $(TEMPORAL_WORKERS),2) --dist loadfile --temporal tests/behaviour

browsers: ## Install Chromium for the tests of the dashboard (Debian's; as root, or with sudo)
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || test -n "$$HOLDFAST_CHROMIUM" || { \
	  sudo=$$(test "$$(id -u)" = 0 || command -v sudo) && export DEBIAN_FRONTEND=noninteractive && \
	  patient="-o Acquire::Retries=5 -o DPkg::Lock::Timeout=300" && $$sudo apt-get update -qq $$patient && \
	  $$sudo apt-get install -qq -y $$patient --no-install-recommends chromium >/dev/null; } || { \
	  echo "apt-get cannot install chromium here; name one: HOLDFAST_CHROMIUM=/path/to/chromium" >&2; exit 1; }

keyvalue: $(READY) ## Run all tests of runs and engines on key-value stores: contract, behaviour, kills, moves; Redis if it is there
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m "not speed" tests/kv
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m "slow or not slow" tests/stores/keyvalue
	@$(BIN)/python -m pytest -q -n $(WORKERS) --key-value tests/behaviour
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m slow -k keyvalue tests/transfer/test_transfer.py

redis: ## Install redis-server for the tests of the driver over it (Debian's; as root, or with sudo)
	@command -v redis-server >/dev/null || { \
	  sudo=$$(test "$$(id -u)" = 0 || command -v sudo) && export DEBIAN_FRONTEND=noninteractive && \
	  patient="-o Acquire::Retries=5 -o DPkg::Lock::Timeout=300" && $$sudo apt-get update -qq $$patient && \
	  $$sudo apt-get install -qq -y $$patient --no-install-recommends redis-server >/dev/null; } || { \
	  echo "apt-get cannot install redis-server here; without it those tests are skipped" >&2; exit 1; }

speed: $(READY) ## Judge what things cost by time: run by itself, on a machine that has nothing else to do
	@$(BIN)/python -m pytest -q -m "speed and not slow" tests

format: $(READY) ## Format the code and repair what the linter can
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

newcomer: $(READY) browsers ## Measure how long it takes from pip install to a run that is seen live in a browser
	@$(BIN)/python benchmarks/newcomer.py

bench: $(READY) ## Run the benchmark
	@$(BIN)/python benchmarks/run.py

stress: $(READY) ## Run the random world and the kills many times over (SEEDS=1000, an hour or more)
	@HOLDFAST_SEEDS=$(or $(SEEDS),1000) $(BIN)/python -m pytest -q -n $(WORKERS) tests/simulation
	@HOLDFAST_SEEDS=$(or $(SEEDS),1000) $(BIN)/python -m pytest -q -n $(WORKERS) -m slow \
	  tests/simulation/test_limits.py tests/crash/test_flow_storms.py
	@$(BIN)/python -m pytest -q -m slow tests
	@$(BIN)/python -m pytest -q -n $(WORKERS) --all-modes -k postgres tests/behaviour
	@for round in 1 2 3 4 5; do $(BIN)/python -m pytest -q tests/crash || exit 1; done

postgres: $(READY) ## Run the tests that use PostgreSQL on another version (POSTGRES=15)
	@HOLDFAST_POSTGRES=$(or $(POSTGRES),15) $(BIN)/python -m pytest -q -n $(WORKERS) --all-modes -k "postgres or Postgres" tests

coverage: $(READY) ## Run the tests and show the lines and branches they miss
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q -n $(WORKERS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

clean: ## Remove the environment and everything generated
	rm -rf $(VENV) .coverage .coverage.* htmlcov build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# The environment is kept when it has the same Python version, and made again when it has another or is broken.
# pip's output becomes one dot per package; its errors are shown. The stamp is the sign that pip succeeded.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "holdfast needs Python 3.11 or newer; '$(PYTHON)' is $(or $(VERSION),not a working Python)." \
	       "Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@rm -f $@
	@$(BIN)/python -c 'import pip, sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(VERSION)")' 2>/dev/null || { \
	  echo "Creating $(VENV) with Python $(VERSION)"; $(PYTHON) -m venv --clear $(VENV); }
	@printf 'Installing holdfast and its development tools into $(VENV), about a minute '
	@( PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --progress-bar off -e '.[dev]' && touch $@ ) \
	  | while read -r word rest; do case $$word in Collecting|Requirement|Installing) printf .;; esac; done; echo
	@test -f $@
