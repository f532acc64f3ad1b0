# `make help` lists the targets. Each one sets up first where it needs to; a second set-up takes no time.
# Variables travel to the programs: make demo FILE=path DEMO_SABOTAGE=flip-bit, make test REWRITE=1 ARGS='tests/protocol -x'.
SHELL := /bin/sh
PYTHON_IN_VENV := .venv/bin/python
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format docs-all simulate simulate-long invariants fuzz explore chaos chaos-docker mutants mutation-score bench bench-kafka bench-page profile lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: ## create .venv from the lock files (root: installs python3-venv and a JRE where missing)
	@.ci/setup

demo: setup ## three brokers, a killed leader, a power cut, a Spark audit: about half a minute (FILE=path, DEMO_SABOTAGE=...)
	@$(PYTHON_IN_VENV) -m minibroker.demo

# Of a whole run only: a part is faster without the start of workers. A file of tests is one worker's. Each worker may
# start a ZooKeeper, three brokers and a Spark of its own, some 2 GB, hence at most four. Quick files come first.
TEST_WORKERS := --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

test: setup ## all tests, with real ZooKeeper and Spark (REWRITE=1 rewrites expected outputs, ARGS='tests/client -x')
	@$(PYTHON_IN_VENV) -m pytest $(or $(ARGS),$(TEST_WORKERS))

check: setup ## ruff (lint and format) and mypy --strict on everything
	$(PYTHON_IN_VENV) -m ruff check .
	$(PYTHON_IN_VENV) -m ruff format --check .
	$(PYTHON_IN_VENV) -m mypy --strict

format: setup ## format the code, and fix what ruff can fix
	$(PYTHON_IN_VENV) -m ruff check --fix .
	$(PYTHON_IN_VENV) -m ruff format .

docs-all: setup ## run every command of README.md and docs/, the slow ones and Docker's too (make test runs the fast ones)
	@DOCS_COMMANDS=all $(PYTHON_IN_VENV) -m pytest -v tests/docs $(ARGS)

invariants: setup ## which invariants of docs/REPLICATION.md have a test
	@$(PYTHON_IN_VENV) -m tests.invariant_coverage

simulate: setup ## simulated clusters under faults, on all cores (SEEDS=1000 FIRST_SEED=1, or SEEDS=17-99)
	@$(PYTHON_IN_VENV) -m minibroker simulate --seeds $(or $(SEEDS),200) --first-seed $(or $(FIRST_SEED),1) $(ARGS)

simulate-long: setup ## hours of fresh seeds of this commit; goes on where it was stopped (SEEDS=10000, STATE=simulate-long.json)
	@$(PYTHON_IN_VENV) -m minibroker simulate --seeds $(or $(SEEDS),10000) --first-seed $(or $(FIRST_SEED),commit) \
	    --resume $(or $(STATE),simulate-long.json) $(ARGS)

fuzz: setup ## the property tests of the wire with 20 times the examples (FOLDER=.. for others), and hostile requests to clusters
	@$(PYTHON_IN_VENV) -m pytest --hypothesis-profile=fuzz --timeout=3600 -m hypothesis $(or $(FOLDER),tests/protocol tests/runtime) $(ARGS)
	@$(PYTHON_IN_VENV) -m tests.broker.hostile_requests --requests 200000

mutants: setup ## plant Kafka's bugs one by one and see each caught (SEARCH=1 searches random seeds for all, under an hour)
	@$(PYTHON_IN_VENV) -m tests.mutants $(if $(SEARCH),search,replay) $(ARGS)

mutation-score: setup ## try random small changes of the code on tests and seeds (SAMPLE=400 SEED=1); goes on where it was stopped
	@$(PYTHON_IN_VENV) -m tests.mutation_score --sample $(or $(SAMPLE),400) --seed $(or $(SEED),1) $(ARGS)

explore: setup ## search the small model of the pure cores to its end, then convict its mutants (ARGS='power --mutant H7', WRITE=1)
	@$(PYTHON_IN_VENV) -m tests.simulation.model $(if $(WRITE),--write) $(ARGS)

chaos: setup ## five minutes of faults on processes of this machine (SEED=7 ARGS='--faults kill'); docs/CHAOS.md
	@$(PYTHON_IN_VENV) -m minibroker chaos run --duration 300 $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos-docker: setup ## three minutes of faults on the containers of docker-compose.yml (SEED=7 ARGS='--faults kill')
	@$(PYTHON_IN_VENV) -m minibroker chaos run --backend compose --duration 180 $(if $(SEED),--seed $(SEED)) $(ARGS)

profile: setup ## where the microseconds of a produce and of a fetch go, system calls included (ARGS='--batch-bytes 16384 --json')
	@$(PYTHON_IN_VENV) -m minibroker.bench.profile $(ARGS)

bench: setup ## measure a cluster on this machine: throughput, latency, reading, failover (ARGS='--quick --cases produce-*')
	@$(PYTHON_IN_VENV) -m minibroker bench $(ARGS)

bench-kafka: setup ## the same beside a real Kafka 3.9, which it fetches by Maven; writes bench-results/ (OUT=folder, ARGS=...)
	@$(PYTHON_IN_VENV) -m minibroker bench --peer kafka --out $(or $(OUT),bench-results) $(ARGS)

bench-page: setup ## renew the tables and the chart of docs/PERFORMANCE.md (FILES='one.json other.json': parts of one run)
	@$(PYTHON_IN_VENV) -m minibroker bench report --write docs/PERFORMANCE.md --svg docs/performance.svg \
	    $(or $(FILES),bench-results/bench.json)

lock: setup ## renew requirements/*.lock (UPGRADE=1, or PACKAGE=name, for newer versions)
	@.ci/lock

clean: ## remove what was built, .venv and .venvs too; data directories stay
	rm -rf .venv .venvs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
