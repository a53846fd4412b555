# make setup [GYM=1] [RAY=1] [TRACKERS=1] [AGENTS=1] [DOCS=1] [TRITON=1] [GPU=1 [TE=1]] | train [RECIPE=path] [ARGS="section.key=value ..."] | check | eval | view | chat | quick | test | test-all | test-newest | bench | gpu-check | docs | pictures | algorithms | asynchrony | seeds | chaos
PYTHON ?= python3
RECIPE ?= recipes/r1_zero_arithmetic_cpu.yaml
ARGS ?=
RUN ?= $(shell ls -dt runs/*/ 2>/dev/null | head -1)
BIN := .venv/bin
READY := .venv/.ready
NEWEST := .venv/newest
GPU_READY := .venv/.ready-gpu
# An environment for GPUs stays one: `make train` needs no GPU=1.
GPU ?= $(if $(wildcard $(GPU_READY)),1)
GYM_READY := .venv/.ready-gym
RAY_READY := .venv/.ready-ray
TRACKERS_READY := .venv/.ready-trackers
AGENTS_READY := .venv/.ready-agents
DOCS_READY := .venv/.ready-docs
TRITON_READY := .venv/.ready-triton
TE_READY := .venv/.ready-te
# Megatron-core 0.19.2 asks Transformer Engine for its version up to 2.14. Not compiled yet.
TE_VERSION ?= 2.14.1
$(if $(TE),$(if $(GPU),,$(error TE=1 is for GPUs: make setup GPU=1 TE=1)))
# PyPI's torch is a CUDA build; this index has the CPU one. A machine that gets its wheels elsewhere ignores it.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip install --disable-pip-version-check
# There while packages are installed: after an interruption uv takes packages that lack files for installed ones.
BEGUN := .venv/.begun
BEGIN := test ! -e $(BEGUN) || { echo "The last set-up was interrupted: .venv is made again"; rm -rf .venv; }; mkdir -p .venv && touch $(BEGUN)
# uv resolves and links in seconds, where pip takes minutes. Without one on PATH, .venv gets it from pip's index; where it
# does not reach what pip reaches, it is removed again, and pip installs. UV= takes pip all the same.
UV_ON_PATH := $(shell command -v uv 2> /dev/null)
UV_VERSION := 0.13.9
UV ?= $(or $(UV_ON_PATH),$(BIN)/uv)
UV_IS_OURS := $(filter $(BIN)/uv,$(UV))
GET_UV = test -x $(UV) || $(PIP) --quiet --no-deps --only-binary :all: uv==$(UV_VERSION) || \
  echo "pip finds no uv $(UV_VERSION) and installs all by itself: minutes more"
WITH_UV := $(UV) pip install --python $(BIN)/python
INSTALL := $(if $(UV),$(if $(UV_IS_OURS),$$(test -x $(UV) && echo $(WITH_UV) || echo $(PIP)),$(WITH_UV)),$(PIP))
# What pip is told by its environment, for uv.
$(if $(PIP_FIND_LINKS),$(eval export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)))
$(if $(PIP_INDEX_URL),$(eval export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)))
# WHEELS=folder: packages come from there alone, and no network is asked.
$(if $(WHEELS),$(eval export PIP_NO_INDEX := 1)$(eval export UV_OFFLINE := 1)$(foreach tool,PIP UV,$(eval export $(tool)_FIND_LINKS := $(abspath $(WHEELS)))))
# Of gpu.lock. A PYTHON that was not named is looked for: on PATH, then by uv, which fetches it.
GPU_PYTHON := 3.12
GPU_PACKAGES := --no-deps --require-hashes --only-binary :all: -r gpu.lock
GPU_VENV = $(if $(filter file,$(origin PYTHON)),python$(GPU_PYTHON) -m venv .venv 2> /dev/null || $(if $(UV_ON_PATH),$(UV_ON_PATH) venv --quiet --seed --clear --python $(GPU_PYTHON) .venv,false),$(PYTHON) -m venv .venv)
TORCH_BY_UV = { test -x "$$(command -v $(UV))" && UV_HTTP_RETRIES=0 $(WITH_UV) --no-deps --extra-index-url $(TORCH_INDEX) \
  "$$(grep '^torch==' cpu.lock)" || { echo "uv has no torch from there: pip tries"; false; }; }
# It passes over an index that cannot be reached, where uv stops.
TORCH_BY_PIP = $(PIP) --no-deps --retries 0 --extra-index-url $(TORCH_INDEX) "$$(grep '^torch==' cpu.lock)"
# The packages of one more lock file; all of them again after an interruption.
EXTRA = again=$$(test ! -e $@.begun || echo --force-reinstall); touch $@.begun; $(INSTALL) --no-deps $$again $(1) && rm $@.begun && touch $@
# "compat" puts one path where setuptools would put a finder, whose imports cost each Python process 25 ms.
SELF := --no-deps --no-build-isolation --config-settings editable_mode=compat -e .

# Containers set it. Python would then compile this code in each process, and pytest each test file in each of its.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup docs pictures gpu-lock gpu-check train eval check view chat quick test test-all test-newest lint bench algorithms asynchrony seeds chaos clean

setup: $(if $(GPU),$(GPU_READY),$(READY)) $(if $(GYM),$(GYM_READY)) $(if $(RAY),$(RAY_READY)) $(if $(TRACKERS),$(TRACKERS_READY)) $(if $(AGENTS),$(AGENTS_READY)) $(if $(DOCS),$(DOCS_READY)) $(if $(TRITON),$(TRITON_READY)) $(if $(TE),$(TE_READY))

$(READY): cpu.lock pyproject.toml
	@echo "Setting up .venv (2 GB): half a minute at 200 Mbit/s, 10 seconds with its packages in a cache"
	@$(BEGIN)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(if $(UV_IS_OURS),$(GET_UV))
	@echo "1/3 torch: 190 MB"
	@$(if $(UV),$(TORCH_BY_UV) ||) $(TORCH_BY_PIP)
	@$(BIN)/python -c "import importlib.metadata as m, sys; v = m.version('torch'); \
	  sys.exit(0 if v.endswith('+cpu') else f'torch {v} is not a CPU build: set TORCH_INDEX to an index that has one')"
	@echo "2/3 packages ($$(grep -c == cpu.lock)): the longest part"
	@$(INSTALL) --no-deps -r cpu.lock$(if $(UV_IS_OURS), || { rm -f $(UV) && $(PIP) --no-deps -r cpu.lock; })
	@echo "3/3 asyncrl: a second"
	@$(INSTALL) $(SELF)
	@rm -f $(BEGUN) && touch $@

# Of `make setup GPU=1`: CUDA builds, checked against the digests of gpu.lock.
$(GPU_READY): gpu.lock pyproject.toml
	@test ! -e $(READY) || { echo ".venv holds the CPU builds. Remove it (rm -rf .venv), then run the same again." >&2; exit 2; }
	@echo "Setting up .venv for GPUs (several GB)"
	@$(BEGIN)
	@test -x $(BIN)/python || { $(GPU_VENV); } || { rm -f $(BIN)/python; echo "gpu.lock is for Python $(GPU_PYTHON), and no python$(GPU_PYTHON) with venv is on PATH: install it, or uv, which fetches it, or set PYTHON to its path." >&2; exit 2; }
	@touch $(BEGUN)
	@$(BIN)/python -c "import platform as p, sys; \
	  here = f'{p.system()} {p.machine()}, Python {sys.version_info[0]}.{sys.version_info[1]}'; \
	  sys.exit(0 if here == 'Linux x86_64, Python $(GPU_PYTHON)' else f'gpu.lock is for Linux x86_64, Python $(GPU_PYTHON); this is {here}: set PYTHON, or leave it out')"
	@$(if $(UV_IS_OURS),$(GET_UV))
	@echo "1/2 packages ($$(grep -c == gpu.lock))"
	@$(INSTALL) $(GPU_PACKAGES)$(if $(UV_IS_OURS), || { rm -f $(UV) && $(PIP) $(GPU_PACKAGES); })
	@echo "2/2 asyncrl"
	@$(INSTALL) $(SELF)
	@$(BIN)/python -P asyncrl/serving/engine/hooks/cuda_toolkit.py
	@rm -f $(BEGUN) && touch $@

# Of `make setup GPU=1 TE=1`: Transformer Engine, compiled against the locked torch. No locked package may change for it.
$(TE_READY): $(GPU_READY)
	@sed 's/ --hash=.*//' gpu.lock > .venv/gpu.constraints
	@echo "Compiling Transformer Engine $(TE_VERSION)"
	@CUDA_HOME=$${CUDA_HOME:-$(CURDIR)/.venv/cuda} NVTE_FRAMEWORK=pytorch $(INSTALL) --no-build-isolation \
	  -c .venv/gpu.constraints "transformer-engine[core_cu13,pytorch]==$(TE_VERSION)"
	@$(BIN)/python -c "import transformer_engine.pytorch"
	@touch $@

# Resolves gpu.lock again, for this pyproject.toml; installs nothing.
gpu-lock:
	@$(PYTHON) .make/gpu_lock.py

# Of `make setup GYM=1`: tasks of reasoning-gym. Compiles one of its packages.
$(GYM_READY): gym.lock $(if $(GPU),$(GPU_READY),$(READY))
	@$(call EXTRA,--no-build-isolation -r gym.lock)

# Of `make setup RAY=1`: runs on Ray clusters.
$(RAY_READY): ray.lock $(if $(GPU),$(GPU_READY),$(READY))
	@$(call EXTRA,-r ray.lock)

# Of `make setup TRACKERS=1`: TensorBoard, W&B, MLflow and trackio.
$(TRACKERS_READY): trackers.lock $(if $(GPU),$(GPU_READY),$(READY))
	@$(call EXTRA,-r trackers.lock)

# Of `make setup AGENTS=1`: OpenAI's and Anthropic's clients and smolagents, for agents that use them.
$(AGENTS_READY): agents.lock $(if $(GPU),$(GPU_READY),$(READY))
	@$(call EXTRA,-r agents.lock)

# Of `make setup DOCS=1`: the site of docs/, and Jupyter for its notebooks.
$(DOCS_READY): docs.lock $(if $(GPU),$(GPU_READY),$(READY))
	@$(call EXTRA,-r docs.lock)

# Of `make setup TRITON=1`: the interpreter of Triton's kernels, for tests without a GPU.
$(TRITON_READY): triton.lock $(if $(GPU),$(GPU_READY),$(READY))
	@$(call EXTRA,-r triton.lock)

# The site of docs/, in .bench/site/html.
docs: $(DOCS_READY)
	@$(BIN)/python .make/site.py

# Every picture of docs/images, of real runs that it trains in .bench/pictures (needs Chromium); ARGS="compare log" takes some again.
pictures: setup
	@$(BIN)/python .make/pictures.py $(ARGS)

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
	@$(BIN)/python -m pytest -n 2 -q -m "not slow and not exhaustive and not gpu and not heavy" $(ARGS)

test: setup
	@$(BIN)/python -m pytest -n 3 -m "not slow and not exhaustive and not gpu" $(ARGS)

# One after the other: slow tests measure, kill and fill disks.
test-all: setup
	@$(BIN)/python -m pytest -m "not gpu" --hypothesis-profile=random $(ARGS)

# The trainer's tests on the newest Megatron-core of cpu.lock, put in front of the one that is installed. Its wheels ask for
# Python 3.12; what is used of it runs on 3.11 too. Part by part, resumable; ARGS="--part step" runs one.
test-newest: setup $(NEWEST)/.ready
	@PYTHONPATH="$(CURDIR)/$(NEWEST)" $(BIN)/python .make/newest.py .venv/newest-passed $(ARGS)

$(NEWEST)/.ready: cpu.lock
	@$(PIP) --quiet --upgrade --target $(NEWEST) --no-deps --python-version 3.12 --only-binary :all: \
	  "$$(sed -n 's/^\(megatron-core==[^;]*\); python_version >= .*/\1/p' cpu.lock)"
	@touch $@

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

# Whether the GPUs of this machine can be trusted, in at most 23 minutes and one table. MODELS=folder runs that model;
# ARGS="--piece 1" is the first nine minutes of it, ARGS="--parts engine" repeats a part, ARGS="--device cpu" rehearses on a CPU.
gpu-check: setup
	@$(BIN)/python tests/benchmarks/gpu_check.py $(if $(MODELS),--model $(MODELS)) $(ARGS)

# The ablation of the algorithms, resumable; needs GYM=1. ARGS="--plan" says what is left and how long it takes.
algorithms: setup
	@$(BIN)/python tests/benchmarks/algorithms/run.py $(ARGS)

# Asynchronous against synchronous training, resumable; wants an idle machine. ARGS="--plan" says what is left.
asynchrony: setup
	@$(BIN)/python tests/benchmarks/asynchrony.py $(ARGS)

# RECIPE on three seeds, with intervals: held-out accuracy, lengths, answers before and after. Resumable.
seeds: setup
	@$(BIN)/python tests/benchmarks/seeds.py $(RECIPE) $(ARGS)

# Kills, stops, corrupts and fills the disks of a real run 100 times and audits its journal (about 30 minutes).
chaos: setup
	@$(BIN)/python tests/chaos/chaos.py $(ARGS)

clean:
	rm -rf .venv .cache runs
