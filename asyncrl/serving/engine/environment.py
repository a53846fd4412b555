"""How a server process is started: its environment and its command line, with a GPU and without.

Imports neither torch nor SGLang: the controller calls it.
"""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from asyncrl.recipe import Model, Serving
from asyncrl.recipe.server_options import (
    ATTENTION_RANKS,
    CACHE_TYPE,
    EXPERT_RANKS,
    FLOAT32_HEAD,
    QUANTIZATION,
    ROUTED_EXPERTS,
    STATES_PER_REQUEST,
)
from asyncrl.serving.engine.hooks.cuda_toolkit import toolkit_environment
from asyncrl.system.machine import KERNEL_CACHES
from asyncrl.system.network import loopback_direct

CPU_PATH = Path(__file__).with_name("cpu_path")
"""Stand-ins for packages that have no CPU build."""

MOST_GRAPHED = 256
"""Requests at once up to which a GPU decodes by CUDA graphs: as many as SGLang takes on one of 80 GB."""

_GRAPH_BACKENDS = ("--cuda-graph-config", "--cuda-graph-backend-decode", "--cuda-graph-backend-prefill")

_KEPT_BYTES = str(128 * 2**20)

_CACHE = "SGLANG_CACHE_DIR"


@functools.cache
def cache_environment() -> dict[str, str]:
    """Variables that give a server process a folder for its cache where the home takes none, as in a
    container whose disk is read-only: SGLang makes folders there as it is imported. Ours ends with this
    process."""
    if _CACHE in os.environ:
        return {}
    usual = Path(os.path.expanduser("~/.cache/sglang"))
    try:
        usual.mkdir(parents=True, exist_ok=True)
        if os.access(usual, os.W_OK):
            return {}
    except OSError:
        # Whatever is wrong with the home, a temporary folder will do.
        pass
    ours = tempfile.mkdtemp(prefix="asyncrl-cache-")
    atexit.register(shutil.rmtree, ours, ignore_errors=True)
    return {_CACHE: ours}


def releases_graphs(serving: Serving, *, has_gpu: bool, can_sleep: bool) -> bool:
    """Whether a server's CUDA graphs give their memory back while it sleeps, to host memory. SGLang 0.5.23
    can do so with its backend `full` alone: not where the recipe chooses backends."""
    options = {argument.split("=")[0] for argument in serving.extra_arguments}
    return has_gpu and can_sleep and not options.intersection(_GRAPH_BACKENDS)


def engine_environment(
    *, threads: int, has_gpu: bool, host: str = "127.0.0.1", releases_graphs: bool = False
) -> dict[str, str]:
    """Variables to add to the environment of a server process that others reach at `host`."""
    environment = {
        # SGLang asks itself over HTTP whether it is ready.
        **loopback_direct(os.environ, host),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        # Longer than a client keeps an idle connection: one that the server closes looks like a dead server.
        "SGLANG_TIMEOUT_KEEP_ALIVE": "300",
        # Log-probs are of the distribution that was sampled from, after the temperature, whatever the user's
        # shell says: the trainer compares its own at that temperature.
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "false",
    }
    if has_gpu:
        if releases_graphs:
            environment["SGLANG_MEMORY_SAVER_CUDA_GRAPH"] = "true"
        return environment | toolkit_environment()
    paths = [str(CPU_PATH), *filter(None, [os.environ.get("PYTHONPATH")])]
    return environment | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": os.pathsep.join(paths),
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "asyncrl.serving.engine.models",
        # Inputs that convolutions keep (Qwen3-Next) are in bfloat16 otherwise, also of a float32 model.
        "SGLANG_MAMBA_CONV_DTYPE": "float32",
        # The compiler would take the stand-in for Triton for the real one.
        "TORCHDYNAMO_DISABLE": "1",
        # Freed tensors of megabytes stay with the process: fresh pages cost more than filling them.
        "MALLOC_TRIM_THRESHOLD_": _KEPT_BYTES,
        "MALLOC_MMAP_THRESHOLD_": _KEPT_BYTES,
        "MALLOC_ARENA_MAX": "2",
        **KERNEL_CACHES,
    }


def group_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """NCCL's settings for a process in a server's communicator: SGLang 0.5.23 sets these in its own
    processes where they are not set, and two sides that differ exchange memory handles of two kinds."""
    return {name: environment.get(name, "0") for name in ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")}


def engine_arguments(
    serving: Serving,
    model: Model,
    *,
    has_gpu: bool,
    port: int,
    model_folder: Path,
    stream_interval: int,
    seed: int,
    host: str = "127.0.0.1",
    can_sleep: bool = False,
    returns_routes: bool = False,
) -> list[str]:
    """The command line after the interpreter: `-m sglang.launch_server ...`. The server listens on `host`.

    One that `can_sleep` can release the memory of its GPU; on a CPU each can. One that `returns_routes` says
    which experts each token took (algorithm.routing_replay).
    """
    arguments = ["-m", "sglang.launch_server", "--model-path", str(model_folder), "--dtype", model.dtype]
    arguments += ["--host", host, "--port", str(port), "--random-seed", str(seed)]
    arguments += ["--tensor-parallel-size", str(serving.tensor_parallel_size)]
    if serving.attention_data_parallel_size > 1:
        arguments += [ATTENTION_RANKS, str(serving.attention_data_parallel_size)]
    if serving.expert_parallel_size > 1:
        arguments += [EXPERT_RANKS, str(serving.expert_parallel_size)]
    if serving.quantization is not None:
        # The one loader of SGLang that can load weights again over quantised ones.
        arguments += [QUANTIZATION, serving.quantization, "--load-format", "flash_rl"]
    if serving.kv_cache_dtype is not None:
        arguments += [CACHE_TYPE, serving.kv_cache_dtype]
    cache_tokens = serving.cache_tokens(has_gpu=has_gpu)
    if cache_tokens is not None:
        arguments += ["--max-total-tokens", str(cache_tokens)]
    arguments += ["--max-running-requests", str(serving.max_running_requests)]
    # Tokens go in and out, never text; each chunk holds the new tokens only.
    arguments += ["--skip-tokenizer-init", "--incremental-streaming-output"]
    arguments += ["--stream-interval", str(stream_interval)]
    if model.float32_logits and model.dtype != "float32":
        arguments += [FLOAT32_HEAD]
    if returns_routes:
        arguments += [ROUTED_EXPERTS]
    if model.context_tokens is not None:
        arguments += ["--context-length", str(model.context_tokens)]
    if not has_gpu:
        arguments += _cpu_arguments(serving)
    elif model.dtype == "float32":
        # Those that SGLang prefers are for 16 bits.
        arguments += ["--attention-backend", "triton"]
    if has_gpu and serving.max_running_requests <= MOST_GRAPHED:
        # SGLang takes 8 to 48 on GPUs of less than 60 GB; larger batches would decode without a graph.
        arguments += ["--cuda-graph-max-bs-decode", str(serving.max_running_requests)]
    if has_gpu and can_sleep:
        arguments += ["--enable-memory-saver"]
    if releases_graphs(serving, has_gpu=has_gpu, can_sleep=can_sleep):
        # Those of its default, breakable, cannot be released, and it does not start.
        arguments += ["--cuda-graph-backend-prefill", "disabled"]
    return arguments + serving.extra_arguments


def _cpu_arguments(serving: Serving) -> list[str]:
    arguments = ["--device", "cpu", "--attention-backend", "asyncrl_cpu"]
    # There is nothing to overlap with: the schedule would only delay each result by a step.
    arguments += ["--disable-overlap-schedule"]
    # Our attention masks what a sliding layer does not see; it has one cache for all layers.
    arguments += ["--disable-hybrid-swa-memory"]
    arguments += ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"]
    # States of linear attention; SGLang would take most of the free memory for them.
    arguments += ["--max-mamba-cache-size", str(STATES_PER_REQUEST * serving.max_running_requests)]
    # An idle scheduler otherwise polls, on a core that the trainer could use.
    arguments += ["--sleep-on-idle"]
    return arguments
