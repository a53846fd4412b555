"""How a server process is started: its environment and its command line, with a GPU and without.

Imports neither torch nor SGLang: the controller calls it.
"""

from pathlib import Path

from asyncrl.recipe import Model, Serving

CPU_PATH = Path(__file__).with_name("cpu_path")
"""Stand-ins for packages that have no CPU build."""

_CPU_ATTENTION = "asyncrl_cpu"


def engine_environment(*, threads: int, has_gpu: bool) -> dict[str, str]:
    """Variables to add to a server process's environment."""
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    if has_gpu:
        return environment
    return environment | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": str(CPU_PATH),
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "asyncrl.serving.engine.models",
        # The compiler would take the stand-in for Triton for the real one.
        "TORCHDYNAMO_DISABLE": "1",
    }


def engine_arguments(
    serving: Serving,
    model: Model,
    *,
    has_gpu: bool,
    port: int,
    model_folder: Path,
    stream_interval: int,
    seed: int,
) -> list[str]:
    """The command line after the interpreter: `-m sglang.launch_server ...`."""
    arguments = ["-m", "sglang.launch_server"]
    arguments += ["--model-path", str(model_folder), "--dtype", model.dtype]
    arguments += ["--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--tensor-parallel-size", str(serving.tensor_parallel_size)]
    arguments += ["--max-total-tokens", str(serving.max_total_tokens)]
    arguments += ["--max-running-requests", str(serving.max_running_requests)]
    arguments += ["--stream-interval", str(stream_interval), "--incremental-streaming-output"]
    arguments += ["--skip-tokenizer-init", "--random-seed", str(seed)]
    if model.context_tokens is not None:
        arguments += ["--context-length", str(model.context_tokens)]
    if not has_gpu:
        arguments += ["--device", "cpu", "--attention-backend", _CPU_ATTENTION]
        arguments += ["--disable-overlap-schedule", "--disable-cuda-graph", "--sleep-on-idle"]
    return arguments + serving.extra_arguments
