# The commands of this repository. ARGS passes options on: make run ARGS="--port 8000"

PYTHON := .venv/bin/python
NODE   := .venv/bin/node
ARGS   ?=

# The warning: the scripts are modules by what they say, not by a package.json in the folders that are served.
RUN_WEB_TESTS := $(NODE) --disable-warning=MODULE_TYPELESS_PACKAGE_JSON --test "tests/web/*.test.js"

# Tests start dozens of servers, and without bytecode files each would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-fast test-web test-full test-compose lint bench guide docs lock clean

help:
	@echo "make run        install what is missing and start the chat at http://127.0.0.1:7860"
	@echo "make test       all tests except the long ones, browser tests included"
	@echo "make test-fast  while writing, in a minute and a half: no browser, killed servers, PostgreSQL, the guide's own; nothing slow"
	@echo "make test-web   the tests of the pages' scripts that need no browser; make test runs them too"
	@echo "make test-full  the long tests: more seeds, slow variants, longer runs, more kills, Triton (a download of 190 MB)"
	@echo "make test-compose  test the server in containers (needs Docker): build, crash, backup, restore"
	@echo "make lint       ruff, mypy --strict, eslint, tsc --strict, the layers as import contracts"
	@echo "make bench      compare the engine with its peers on this machine; ARGS=--quick for a short run"
	@echo "make guide      train the bundled model again"
	@echo "make docs       write what follows from the code: the tables in docs/, the pictures of the benchmarks, the export schema, the scripts' API types, visitors' texts"
	@echo "make lock       pin the dependencies of pyproject.toml again"
	@echo "make clean      remove .venv, node_modules and caches; keeps the conversations in data/"

run:
	@scripts/setup.sh run
	@exec $(PYTHON) -m app serve $(ARGS)

test:
	@scripts/setup.sh test
	@scripts/chromium.sh
	$(RUN_WEB_TESTS)
	$(PYTHON) -m pytest -m "not full and not compose" -n 3 --dist loadfile $(ARGS)

# Two processes for two cores: each imports for ten seconds. On more cores: make test-fast ARGS="-n 6".
test-fast:
	@scripts/setup.sh test
	$(RUN_WEB_TESTS)
	$(PYTHON) -m pytest -m "not full and not slow and not postgres" -n 2 --dist loadfile \
		--ignore tests/e2e --ignore tests/faults --ignore tests/models $(ARGS)

test-web:
	@scripts/setup.sh test
	$(RUN_WEB_TESTS)

test-full:
	@scripts/setup.sh full
	@scripts/chromium.sh
	@scripts/cross_tools.sh
	@scripts/clients.sh
	@scripts/json_schema_suite.sh
	$(PYTHON) -m pytest -m full -n 3 $(ARGS)

test-compose:
	@scripts/setup.sh test
	@scripts/chromium.sh
	$(PYTHON) -m pytest -m compose $(ARGS)

lint:
	@scripts/setup.sh test
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(NODE) tests/web/node_modules/eslint/bin/eslint.js --config tests/web/eslint.config.js --max-warnings 0 app/ui tests/web
	$(NODE) tests/web/node_modules/typescript/bin/tsc --project tests/web
	.venv/bin/lint-imports --no-logo

bench:
	@scripts/setup.sh bench
	$(PYTHON) -m benchmarks $(ARGS)

guide:
	@scripts/setup.sh run
	$(PYTHON) models/guide/train.py $(ARGS)

docs:
	@scripts/setup.sh run
	$(PYTHON) scripts/texts.py
	$(PYTHON) scripts/docs_tables.py
	$(PYTHON) -m benchmarks.pictures
	$(PYTHON) scripts/export_schema.py
	$(PYTHON) scripts/api_types.py

lock:
	@scripts/setup.sh lock $(ARGS)

clean:
	rm -rf .venv tests/web/node_modules tests/clients/node/node_modules build deskmate.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
