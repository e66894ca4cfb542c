# Needs Python >= 3.11 and make; everything else comes into .venv by itself.

PYTHON ?= python3
# Elsewhere PYTHON names an interpreter; `make mutants PYTHON=1` says what to mutate.
ifeq ($(PYTHON),1)
override PYTHON := python3
MUTATED := python
endif
VENV   ?= $(if $(LOWEST),.venv-lowest,.venv)
# LOWEST=1: the lowest versions that pyproject.toml allows.
LOWEST ?=
LOCK   := $(if $(LOWEST),constraints-lowest.txt,constraints.txt)
PG     ?=
ARGS   ?=
POOLER ?=
MINUTES ?= 10
SEED   ?=
COUNT  ?= 100
FAULTS ?= all
MODEL_EXAMPLES ?= 1000
SAMPLES ?= 1000
PARALLEL ?= -n 6 --dist worksteal
# For work that keeps the processors busy.
BUSY_PARALLEL ?= -n 4 --dist worksteal
FAST   := $(addprefix tests/,unit engine operations store spec client)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# Tests start hundreds of processes: do not let each of them compile every module again.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
PIP := --disable-pip-version-check --no-input

# The version is part of the stamp's name, so that another PYTHON makes the environment anew.
PYVER := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
READY := $(VENV)/.ready-$(PYVER)

ifeq ($(PG),)
WITH_PG :=
else ifeq ($(PG),15)
WITH_PG := $(BIN)/python scripts/postgres15 --
else
WITH_PG = $(error PG=$(PG) is not known: leave it out for the embedded server, or say PG=15)
endif

ifeq ($(POOLER),)
WITH_POOLER :=
else
WITH_POOLER := $(BIN)/python scripts/pgbouncer --
endif

.PHONY: help
help:
	@echo 'gen_durable: a durable state-machine engine on Postgres.'
	@echo
	@echo '  make demo     run forty orders on an embedded Postgres, and kill a worker on the way'
	@echo '  make test     run the tests on the embedded Postgres (about six minutes on two cores)'
	@echo '  make test-fast     the tests of single parts: no killed processes, no interleavings'
	@echo '  make test-plans    the query plans, on a throw-away cluster of postgresql-15 (root installs it)'
	@echo '  make test-roles    the rights of every role, function by function (PG=15, POOLER=1)'
	@echo '  make limits-long   run the tests of limits for minutes instead of seconds, with the documented bounds'
	@echo '  make test-long     random tests and faults at full length, and each benchmark once (about five minutes)'
	@echo '  make interleavings    run up to 500 interleavings of two sessions each, a large sample of three (SAMPLES=1000 SEED=7)'
	@echo '  make model    compare random histories with a model of the database (MODEL_EXAMPLES=2000)'
	@echo '  make mutants  remove each guard of the SQL, one at a time: a test must fail for each (about 7 minutes)'
	@echo '  make mutants PYTHON=1   change random lines of the Python code: a test must fail for 95 % of them (SEED=7 COUNT=100)'
	@echo '  make check    lint, format, import directions, types and prose (ruff, lint-imports, mypy, pyright, scripts/prose.py)'
	@echo '  make prose    count the tics of unclear prose in comments, SQL headers and docs (ARGS=--all lists them)'
	@echo '  make bench    measure the engine against its bare SQL; JSON and plots go to tools/bench/results/'
	@echo '  make bench-pairs BASE=HEAD~20   compare this version with another in pairs (ARGS="--roles --turns 40")'
	@echo '  make bench-scale   measure each statement with 10 k to 3 M rows, and under a long reader (ARGS=--quick)'
	@echo '  make soak     run half of the peak load for an hour (HOURS=0.25) and check that nothing grows'
	@echo '  make plans    write docs/reference/plans.md: EXPLAIN of the hot statements on 1 M rows (postgresql-15, as test-plans)'
	@echo '  make bench-look    measure list and count on 3 M rows, filter by filter (ARGS="--rows 100k")'
	@echo '  make chaos-failover   switch, kill and freeze the leader of two Patroni nodes under load (root installs postgresql-15)'
	@echo '  make fuzz-sizes   run payloads up to their bounds for five minutes (MINUTES=5 SEED=7) beside a heartbeat job'
	@echo '  make hostile  run hostile logins of every role beside a normal load for five minutes (MINUTES=5 SEED=7)'
	@echo '  make chaos    inject faults around the engine for ten minutes, then account for every step'
	@echo '  make fmt      format the code and apply the safe fixes'
	@echo '  make lock     write the constraints files, with hashes; ARGS=--upgrade takes the newest versions (needs an index)'
	@echo '  make release-check   build the packages and their SBOM in dist/, and check them'
	@echo '  make venv     create or refresh the environment in $(VENV); the other targets do it when needed'
	@echo '  make clean    remove $(VENV), caches and build output (data in .gen_durable/ stays)'
	@echo
	@echo 'Variables:'
	@echo '  PYTHON=python3.12       the interpreter of the environment, 3.11 or later (now: $(PYTHON))'
	@echo '  VENV=.venv312           the directory of the environment (now: $(VENV))'
	@echo '  LOWEST=1                test with the lowest versions that pyproject.toml allows, in .venv-lowest'
	@echo '  PG=15                   test on a temporary cluster of postgresql-15 (root installs it)'
	@echo '  POOLER=1                test through PgBouncer in transaction mode (root installs it)'
	@echo '  ARGS="-k signal -x"     options for pytest, the demo, or the benchmark (--size small, --help)'
	@echo '  MINUTES=30 SEED=7       chaos: the duration; the seed of faults and load (it is printed)'
	@echo '  FAULTS=sigkill,proxy    chaos: only these faults; `python -m tools.chaos --help` lists them'
	@echo '  ARGS="flush reap/3"     mutants: only those of a file, or a single one; ARGS=--check runs none'
	@echo '  PEERS=1 BIG=1           bench: also other libraries; also a worker beside a million parked instances'
	@echo
	@echo 'Start with `make demo`; before a commit run `make check test`; in between, `make test-fast`.'

.PHONY: demo
demo: $(READY)
	@$(BIN)/gen-durable demo $(ARGS)

.PHONY: test
test: $(READY)
	$(WITH_PG) $(WITH_POOLER) $(BIN)/pytest $(PARALLEL) $(ARGS)

.PHONY: test-fast
test-fast: $(READY)
	$(WITH_PG) $(WITH_POOLER) $(BIN)/pytest $(PARALLEL) -q -m 'not slow' $(FAST) $(ARGS)

# The embedded server has no auto_explain. Here a plan that cannot be seen is a failure, not a skipped test.
.PHONY: test-plans
test-plans: $(READY)
	$(BIN)/python scripts/postgres15 -- env GEN_DURABLE_TEST_PLANS=required $(BIN)/pytest -n 2 --dist loadfile -q tests/store/test_plans*.py $(ARGS)

# Rights are checked by Postgres and by our functions: both differ between versions, and a pooler shares connections.
.PHONY: test-roles
test-roles: $(READY)
	$(WITH_PG) $(WITH_POOLER) $(BIN)/pytest -n 2 --dist loadfile -q $(addprefix tests/security/,test_role_matrix.py test_roles.py test_role_promises.py test_roles_on_a_used_schema.py) $(ARGS)

.PHONY: limits-long
limits-long: $(READY)
	$(WITH_PG) env LIMITS_LONG=1 $(BIN)/pytest -s tests/flows/test_limit_*.py $(ARGS)

# Every test that `make test` leaves out or makes shorter (tests/support/length.py).
.PHONY: test-long
test-long: $(READY)
	$(WITH_PG) env GEN_DURABLE_TEST_LONG=1 $(BIN)/pytest $(BUSY_PARALLEL) -q -m 'long or scaled' $(ARGS)

.PHONY: interleavings
interleavings: $(READY)
	$(WITH_PG) env GEN_DURABLE_TEST_LONG=1 INTERLEAVING_SAMPLES=$(SAMPLES) INTERLEAVING_SEED=$(or $(SEED),$(shell echo $$RANDOM)) $(BIN)/pytest -q -s --timeout 7200 $(BUSY_PARALLEL) tests/interleavings $(ARGS)

.PHONY: model
model: $(READY)
	$(WITH_PG) env MODEL_EXAMPLES=$(MODEL_EXAMPLES) $(BIN)/pytest -q -s tests/model $(ARGS)

.PHONY: mutants
mutants: $(READY)
	$(WITH_PG) $(BIN)/python -m tools.mutants$(if $(MUTATED),.python --count $(COUNT) $(if $(SEED),--seed $(SEED))) $(ARGS)

.PHONY: check
check: export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	$(BIN)/pyright --project pyproject.toml --pythonpath $(BIN)/python
	$(BIN)/python scripts/prose.py

.PHONY: prose
prose: $(READY)
	$(BIN)/python scripts/prose.py $(ARGS)

.PHONY: bench
bench: $(READY)-bench
	$(WITH_PG) $(BIN)/python -m tools.bench $(if $(PEERS),--peers) $(if $(BIG),--big) $(ARGS)

.PHONY: bench-pairs
bench-pairs: $(READY)-bench
	$(WITH_PG) $(BIN)/python -m tools.bench.pairs $(or $(BASE),$(error say BASE=REVISION, the version to compare with)) $(ARGS)

.PHONY: bench-scale
bench-scale: $(READY)-bench
	$(WITH_PG) $(BIN)/python -m tools.bench.scale $(ARGS)

.PHONY: soak
soak: $(READY)-bench
	$(WITH_PG) $(BIN)/python -m tools.bench.soak --hours $(or $(HOURS),1) $(ARGS)

.PHONY: bench-look
bench-look: $(READY)-bench
	$(WITH_PG) $(BIN)/python -m tools.bench.listing --metadata-index $(ARGS)

# The page of plans needs auto_explain, which the embedded server does not have.
.PHONY: plans
plans: $(READY)
	$(BIN)/python scripts/postgres15 -- $(BIN)/python -m tools.plans $(ARGS)

.PHONY: chaos-failover
chaos-failover: $(READY)
	$(BIN)/python -m tools.chaos.failover $(ARGS)

.PHONY: fuzz-sizes
fuzz-sizes: MINUTES = 5
fuzz-sizes: $(READY)
	$(WITH_PG) $(BIN)/python -m tools.fuzz_sizes --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: hostile
hostile: MINUTES = 5
hostile: $(READY)
	$(WITH_PG) $(BIN)/python -m tools.hostile --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: chaos
chaos: $(READY)
	$(BIN)/python -m tools.chaos --minutes $(MINUTES) --faults $(FAULTS) $(if $(SEED),--seed $(SEED)) $(if $(PG),--pg $(PG)) $(ARGS)

$(READY)-bench: $(READY) constraints-bench.txt
	@$(BIN)/python -m pip install -qq $(PIP) --require-hashes --no-deps -r constraints-bench.txt
	@touch $@

# Needs an index; the versions stay as they are, unless ARGS=--upgrade.
.PHONY: lock
lock: $(READY)
	$(BIN)/python scripts/lock.py $(ARGS)

# The packages and their SBOM, as they would be published, in dist/.
.PHONY: release-check
release-check: $(READY)
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/python scripts/sbom.py dist

.PHONY: fmt
fmt: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: clean
clean:
	rm -rf $(VENV) .venv-lowest build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests docs examples scripts tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.PHONY: venv $(VENV)
venv $(VENV): $(READY)

# The stamp comes last: an interrupted install is done again.
# Every file that is installed must have a hash of $(LOCK). The package itself is built here, without isolation,
# by the backend that is installed that way.
$(READY): pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "gen_durable needs Python 3.11 or later; '$(PYTHON)' is $(or $(PYVER),no interpreter that runs)." >&2; \
	  echo 'Name another one: make PYTHON=/path/to/python3.11' >&2; \
	  exit 1; }
	@echo 'Making $(VENV) with Python $(PYVER); the first time takes about a minute ...'
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq $(PIP) --require-hashes --no-deps -r $(LOCK)
	@$(BIN)/python -m pip install -qq $(PIP) --no-deps --no-build-isolation -e .
	@$(BIN)/python -m pip check $(PIP)
	@touch $@
