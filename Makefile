# make setup [GYM=1] | train [RECIPE=path] [ARGS="section.key=value ..."] | check | eval | view | chat | quick | test | test-all | bench | ablation | seeds | chaos
PYTHON ?= python3
RECIPE ?= recipes/r1_zero_arithmetic_cpu.yaml
ARGS ?=
RUN ?= $(shell ls -dt runs/*/ 2>/dev/null | head -1)
BIN := .venv/bin
READY := .venv/.ready
GYM_READY := .venv/.ready-gym
# PyPI's torch is a CUDA build; this index has the CPU one. A machine that gets its wheels elsewhere ignores it.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
INSTALL := $(BIN)/python asyncrl/launch/install.py

.PHONY: setup train eval check view chat quick test test-all lint bench ablation seeds chaos clean

setup: $(READY) $(if $(GYM),$(GYM_READY))

$(READY): cpu.lock pyproject.toml
	@echo "Setting up .venv (about 2 minutes, 2 GB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(INSTALL) "1/3 torch" 1 --no-deps --retries 0 --extra-index-url $(TORCH_INDEX) "$$(grep '^torch==' cpu.lock)"
	@$(BIN)/python -c "import importlib.metadata as m, sys; v = m.version('torch'); \
	  sys.exit(0 if v.endswith('+cpu') else f'torch {v} is not a CPU build: set TORCH_INDEX to an index that has one')"
	@$(INSTALL) "2/3 packages" $$(grep -c == cpu.lock) --no-deps -r cpu.lock
	@$(INSTALL) "3/3 asyncrl" 1 --no-deps --no-build-isolation -e .
	@touch $@

# Of `make setup GYM=1`: tasks of reasoning-gym. Compiles one of its packages.
$(GYM_READY): gym.lock $(READY)
	@$(INSTALL) "reasoning-gym" $$(grep -c == gym.lock) --no-deps --no-build-isolation -r gym.lock
	@touch $@

train: setup
	@$(BIN)/asyncrl train $(RECIPE) $(ARGS)

eval: setup
	@$(BIN)/asyncrl eval $(RECIPE) $(ARGS)

view: setup
	@$(BIN)/asyncrl view $(RUN)

chat: setup
	@$(BIN)/asyncrl chat $(RUN)

# Without engines, training, sandboxed programs, simulated schedules and long waits.
quick: setup
	@$(BIN)/python -m pytest -n 2 -q -m "not slow and not gpu and not heavy" $(ARGS)

test: setup
	@$(BIN)/python -m pytest -n 2 -m "not slow and not gpu" $(ARGS)

# One after the other: slow tests measure, kill and fill disks.
test-all: setup
	@$(BIN)/python -m pytest -m "not gpu" $(ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# Lints the code, then validates RECIPE and its data without starting anything.
check: lint
	@$(BIN)/asyncrl check $(RECIPE) $(ARGS)

bench: setup
	@for bench in tests/benchmarks/*_bench.py; do echo "== $$bench"; $(BIN)/python $$bench || exit 1; done

# What staleness does with and without correction: 48 short runs, resumable (about 40 minutes).
ablation: setup
	@$(BIN)/python tests/benchmarks/ablation.py $(ARGS)

# RECIPE on three seeds, with intervals: held-out accuracy, lengths, answers before and after. Resumable.
seeds: setup
	@$(BIN)/python tests/benchmarks/seeds.py $(RECIPE) $(ARGS)

# Kills, stops, corrupts and fills the disks of a real run 100 times and audits its journal (about 30 minutes).
chaos: setup
	@$(BIN)/python tests/chaos/chaos.py $(ARGS)

clean:
	rm -rf .venv .cache runs
