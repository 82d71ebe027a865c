# Everything runs in .venv; each target installs what it needs first. `make` alone explains.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell .ci/find-python)
BIN := .venv/bin
INSTALLED := .venv/.installed
DEMO := .venv/.demo
LINTERS := .venv/.linters
SITE := .venv/.site
FUZZER := .venv/.fuzzer
MUTATOR := .venv/.mutator
PLOTTER := .venv/.plotter
AUDITOR := .venv/.auditor
INSTALL := .ci/install
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(LOCK_ARGS)

.PHONY: help install demo test examples simulate crash-points differential planted mutation chaos kills rocketmq spark traffic fuzz lint site images bill audit bench bench-peers lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' Makefile

install: $(INSTALLED) ## the virtual environment .venv with everything, locked by hash

demo: $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(DEMO)) ## a real Kafka, a shop that is killed, and the bridge that rescues its message
	$(BIN)/outbox-bridge demo

test: $(INSTALLED) ## all tests, four at a time (they wait a lot), on a real Kafka (TEST_ARGS="-k name" for some of them)
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(TEST_ARGS)

examples: $(INSTALLED) ## every program in examples/, with the built wheel (needs curl, jq, sqlite3, Node.js, Go and Java)
	$(BIN)/python -m pytest tests/examples -n 2 --dist loadfile $(TEST_ARGS)

simulate: $(INSTALLED) ## the whole bridge under seeded schedules of faults (SEEDS=1000000 goes on where it was stopped)
	$(BIN)/python -m pytest tests/simulation $(TEST_ARGS)
	$(BIN)/python -m tests.simulation $(if $(SEEDS),--seeds $(SEEDS) --ledger .outbox-bridge/simulation.jsonl) $(SIMULATION_ARGS)

crash-points: $(INSTALLED) ## every crash point, each with a real kill of a real process
	$(BIN)/python -m pytest tests/crash $(TEST_ARGS)

differential: $(INSTALLED) ## random programs on the in-memory log and on a real Kafka (SEEDS=3000 for more, SEED=7 for one)
	$(BIN)/python -m pytest tests/differential $(TEST_ARGS)

planted: $(INSTALLED) ## bugs planted in copies of the code: each must be found (PART=7 for an eighth of them, PART=8 for the next)
	$(BIN)/python -m tests.planted $(if $(PART),--part $(PART))

mutation: $(MUTATOR) ## rules, codecs, checks and projected rows changed bit by bit, settler to topology by samples: a test must notice
	$(BIN)/python -m tests.mutation $(MUTATION_ARGS)

CHAOS ?= ci
CHAOS_ARGS = $(foreach name,SEED TRANSACTIONS KILLS BROKER_FAULTS HELD_ENDS DESTINATION_FAULTS MINUTES PENDING BROKERS,$(if $($(name)),--$(subst _,-,$(shell tr A-Z a-z <<< $(name))) $($(name))))
chaos: $(INSTALLED) ## faults on a real Kafka and PostgreSQL, every transaction judged (CHAOS=release, SEED=7, BROKERS=3)
	$(BIN)/python -m tests.chaos $(CHAOS) $(CHAOS_ARGS)

kills: $(INSTALLED) ## producers, relays and bridge killed at random, orders counted afterwards (KILLS=12 MINUTES=1 SEED=8 UPGRADE_FROM=PYTHON)
	$(BIN)/python -m tests.kills --kills $(or $(KILLS),100) $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(UPGRADE_FROM),--upgrade-from $(UPGRADE_FROM))

rocketmq: $(INSTALLED) ## what one client sees of a real RocketMQ and of the door, side by side (needs Maven, Java 17; ROCKETMQ_ARGS="--only twice")
	$(BIN)/python -m tests.rocketmq $(ROCKETMQ_ARGS)

spark: $(INSTALLED) ## reconciliation on real Spark and a real Kafka (needs Java 17 or 21)
	$(BIN)/python -m pytest tests/spark -n 2 --dist loadfile -m "not traffic" $(TEST_ARGS)

traffic: $(INSTALLED) ## reconciliation of a real bridge's traffic with chaos, then of damage done to it (SEED=8 TRANSACTIONS=20000)
	$(BIN)/python -m pytest tests/spark -m traffic
	$(BIN)/python -m tests.traffic $(CHAOS_ARGS)

fuzz: $(FUZZER) ## made-up bytes at the parsers, generated requests at a service (FUZZ_ARGS="--max-examples 500 --seed 7")
	$(BIN)/python -m tests.fuzz.parsers $(PARSER_ARGS)
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

lint: $(LINTERS) ## ruff, mypy, import rules, shell scripts, Dockerfiles, compose.yaml and Helm chart
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/shellcheck .ci/run .ci/find-python .ci/install docker/install docker/secured/make-secrets examples/curl/orders.sh
	$(BIN)/hadolint docker/Dockerfile docker/spark.Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose.yaml docker/compose.secured.yaml
	$(BIN)/python .ci/chart.py

# (with --quiet, mkdocs counts no warnings)
site: $(SITE) ## docs/ as a site in build/site; a link or an anchor that leads nowhere is an error
	$(BIN)/mkdocs build

images: $(AUDITOR) $(LINTERS) ## what the files of docker/ say, done and run without Docker or Kubernetes, as root (Linux)
	PYTHONPATH=. $(BIN)/python .ci/docker_commands.py

bill: $(AUDITOR) ## bills of materials (CycloneDX) of what the images have, as dist/*.cdx.json
	rm -rf build/images && mkdir -p build/images dist
	for lock in server spark; do \
	  PATH="$(CURDIR)/$(BIN):$$PATH" docker/install build/images/$$lock $$lock; \
	  $(BIN)/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
	    -o dist/outbox-bridge-$$lock.cdx.json build/images/$$lock/bin/python; \
	done

audit: $(AUDITOR) $(LINTERS) $(SITE) $(FUZZER) $(MUTATOR) $(PLOTTER) ## licences and known vulnerabilities of all locks (asks PyPI)
	$(BIN)/python -m pytest tests/tidy/test_licences.py
	for lock in requirements/*.txt; do $(BIN)/pip-audit --strict --disable-pip --require-hashes -r $$lock; done

bench: $(PLOTTER) ## rates, latencies, a million undecided, costs; on a machine that rests (BENCH_ARGS="--rounds 1")
	$(BIN)/python -m benchmarks $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.undecided
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.projector_core
	$(BIN)/python -m benchmarks.producers
	$(BIN)/python -m benchmarks.reconciliation
	$(BIN)/python -m benchmarks.profiles
	$(BIN)/python -m benchmarks.report

bench-peers: $(PLOTTER) ## the first part beside RocketMQ (needs Maven), plain FastAPI, one Kafka transaction a message
	$(BIN)/python -m benchmarks --peers $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.door
	$(BIN)/python -m benchmarks.report

lock: $(INSTALLED) ## new hashes for requirements/ (LOCK_ARGS=--upgrade for newer versions)
	$(COMPILE) --extra dev pyproject.toml -o requirements/dev.txt
	$(COMPILE) --extra server --extra local-kafka -c requirements/dev.txt pyproject.toml requirements/build.in -o requirements/demo.txt
	$(COMPILE) --extra server --extra postgres --extra rocketmq --extra otel -c requirements/dev.txt pyproject.toml -o requirements/server.txt
	$(COMPILE) --extra spark -c requirements/dev.txt pyproject.toml -o requirements/spark.txt
	$(COMPILE) -c requirements/dev.txt requirements/build.in -o requirements/build.txt
	$(COMPILE) -c requirements/dev.txt requirements/uv.in -o requirements/uv.txt
	$(COMPILE) -c requirements/dev.txt requirements/lint.in -o requirements/lint.txt
	$(COMPILE) -c requirements/dev.txt requirements/docs.in -o requirements/docs.txt
	$(COMPILE) -c requirements/dev.txt requirements/audit.in -o requirements/audit.txt
	$(COMPILE) -c requirements/dev.txt requirements/bench.in -o requirements/bench.txt
	$(COMPILE) -c requirements/dev.txt requirements/fuzz.in -o requirements/fuzz.txt
	$(COMPILE) -c requirements/dev.txt requirements/mutation.in -o requirements/mutation.txt

clean: ## removes .venv and the tools' caches; .outbox-bridge (your Kafka data) stays
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@.ci/find-python --check "$(PYTHON)"
	@"$(PYTHON)" -m venv .venv || { rm -rf .venv; exit 1; }

$(DEMO): requirements/demo.txt pyproject.toml | .venv/bin/python
	@echo "Installing what a demo needs into .venv (less than a minute) ..."
	@$(INSTALL) --require-hashes -r requirements/demo.txt
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(INSTALLED): requirements/dev.txt pyproject.toml | .venv/bin/python
	@echo "Installing everything into .venv (some minutes the first time) ..."
	@$(INSTALL) --require-hashes -r requirements/dev.txt
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(LINTERS): requirements/lint.txt $(INSTALLED)
	@$(INSTALL) --require-hashes -r requirements/lint.txt
	@touch $@

$(SITE): requirements/docs.txt $(INSTALLED)
	@$(INSTALL) --require-hashes -r requirements/docs.txt
	@touch $@

$(MUTATOR): requirements/mutation.txt $(INSTALLED)
	@$(INSTALL) --require-hashes -r requirements/mutation.txt
	@touch $@

$(PLOTTER): requirements/bench.txt $(INSTALLED)
	@$(INSTALL) --require-hashes -r requirements/bench.txt
	@touch $@

$(AUDITOR): requirements/audit.txt $(INSTALLED)
	@$(INSTALL) --require-hashes -r requirements/audit.txt
	@touch $@

$(FUZZER): requirements/fuzz.txt $(INSTALLED)
	@$(INSTALL) --require-hashes -r requirements/fuzz.txt
	@touch $@
