# One command each. `make` alone lists them.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
PY := .venv/bin/python
NODE_MODULES := tests/conformance/js/node_modules/.package-lock.json

# Test workers, more than cores: tests of clients, crashes and leases wait half of the time. A file of tests stays on one
# worker, and so do all that share a Spark session (tests/plugins/spread.py). PYTEST_ARGS adds options or paths.
WORKERS ?= 6
PYTEST_ARGS ?=
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Of `make chaos`: what chance does, and for how long; and how long damaged bytes are given to each parser.
SEED ?= 1
SECONDS ?= 120
FUZZ_SECONDS ?= 600

# How long `make soak` runs; it begins with SEED.
SOAK_SECONDS ?= 3600

# Rows whose saboteurs `make saboteurs` runs; empty means those that are not proved.
SABOTAGED ?=

# Rows of flight data that `make demo` replays; empty means all 336,776.
ROWS ?=

.PHONY: help setup demo test check format bench bench-quick chaos soak conformance saboteurs docs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.setup ## make .venv from the lock files (nothing to do while they are unchanged)

demo: setup ## the main job: broker, real flights through the Azure SDK, Spark, report (ROWS=20000 for a short run)
	.venv/bin/partibus demo $(if $(ROWS),--rows $(ROWS))

test: setup $(NODE_MODULES) ## every test, the clients in Python and JavaScript among them
	$(PYTEST) $(PYTEST_ARGS)

check: setup ## lint, format, strict types, direction of imports: seconds
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	$(PY) -m pytest -q tests/layers

format: setup ## put the code into the one format and fix what the linter can fix
	.venv/bin/ruff check --fix --exit-zero
	.venv/bin/ruff format

bench: setup ## measure, and write docs/benchmarks.md
	$(PY) -m bench

bench-quick: setup ## a look at a change in about a minute: our broker alone, no page
	$(PY) -m bench --quick

chaos: setup ## kill brokers, clients and databases, cut connections, and check what clients saw; then fuzz each parser (SEED=7 SECONDS=300 FUZZ_SECONDS=60)
	$(PY) -m tests.kit.chaos $(SEED) $(SECONDS) build/chaos
	$(PY) -m tests.robustness.fuzz $(SEED) $(FUZZ_SECONDS)

soak: setup ## histories, crashes, simulations and properties with new seeds, round after round (SEED=7 SOAK_SECONDS=3600)
	$(PY) -m tests.plugins.soak $(SEED) $(SOAK_SECONDS)

# The page is written after failures too (status 1), not after a run that was cut short.
conformance: setup $(NODE_MODULES) ## every test, then docs/conformance.md from what they showed
	@status=0; $(PYTEST) --rows-report=build/rows.json || status=$$?; \
	[ $$status -gt 1 ] || $(PY) -m tests.plugins.conformance build/rows.json docs/conformance.md || exit; \
	exit $$status

saboteurs: setup $(NODE_MODULES) ## take each row's capability away and see its tests fail (SABOTAGED="K6 P3" for some rows)
	$(PY) -m tests.plugins.saboteurs -n $(WORKERS) $(SABOTAGED)

docs: setup .venv/.docs ## build the documentation into build/docs, and check every link
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet
	@echo "docs: open build/docs/index.html"

lock: setup ## choose the pins anew (scripts/lock --upgrade for newer versions)
	scripts/lock

clean: ## remove what the commands above made, .venv and node_modules included
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/conformance/js/node_modules
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.venv/.setup: requirements/main.lock requirements/proton.lock requirements/node.lock scripts/setup
	@PYTHON='$(PYTHON)' scripts/setup

.venv/.docs: requirements/docs.lock .venv/.setup
	$(PY) -m pip install --quiet --require-hashes --no-deps -r requirements/docs.lock
	@touch $@

$(NODE_MODULES): tests/conformance/js/package-lock.json | setup
	$(PY) -m tests.conformance.js.node install
	@touch $@
