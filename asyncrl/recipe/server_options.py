"""Which command-line options of SGLang 0.5.23 a recipe may add to its servers, and why others are refused.

An allowed option decides about memory, scheduling, kernels or logs, and leaves alone which token each pass
gives, its log-prob, its policy version and the weights that are loaded. `asyncrl keys` names the list.
"""

from collections.abc import Sequence

from asyncrl.errors import did_you_mean

STATES_PER_REQUEST = 4
"""States of linear attention that a server on a CPU has room for, per request at once: SGLang 0.5.23 needs
three of each, the rest are those of prefixes."""
ALLOWED = frozenset(
    f"--{name}"
    for name in (
        # memory
        *(
            "mem-fraction-static",
            "page-size",
            "kv-cache-dtype",
            "radix-eviction-policy",
        ),
        *("cpu-offload-gb", "weight-loader-disable-mmap", "weight-loader-prefetch-checkpoints"),
        "weight-loader-prefetch-num-threads",
        # scheduling
        *("chunked-prefill-size", "max-prefill-tokens", "prefill-max-requests", "max-queued-requests"),
        *("schedule-policy", "schedule-conservativeness", "retraction-policy"),
        *("disable-overlap-schedule", "scheduler-recv-interval", "sleep-on-idle", "gc-threshold"),
        *("numa-node", "watchdog-timeout", "soft-watchdog-timeout", "dist-timeout", "skip-server-warmup"),
        # kernels
        *("attention-backend", "prefill-attention-backend", "decode-attention-backend", "sampling-backend"),
        *("moe-runner-backend", "fp8-gemm-backend", "bf16-gemm-backend"),
        *("enable-deterministic-inference", "enable-tf32-matmul", "disable-custom-all-reduce"),
        *("enable-p2p-check", "disable-flashinfer-autotune", "flashinfer-mla-disable-ragged"),
        *("triton-attention-reduce-in-fp32", "triton-attention-num-kv-splits"),
        "triton-attention-split-tile-size",
        # CUDA graphs
        *("cuda-graph-config", "cuda-graph-backend-decode", "cuda-graph-backend-prefill"),
        *("cuda-graph-max-bs-decode", "cuda-graph-max-bs-prefill", "cuda-graph-bs-decode"),
        *("cuda-graph-bs-prefill", "disable-cuda-graph", "disable-cuda-graph-padding"),
        *("disable-prefill-cuda-graph", "disable-decode-cuda-graph", "enable-profile-cuda-graph"),
        # logs
        *("log-level", "log-level-http", "log-requests", "log-requests-level", "log-requests-format"),
        *("log-requests-target", "decode-log-interval", "show-time-cost", "crash-dump-folder"),
        *("enable-metrics", "enable-mfu-metrics", "enable-trace", "otlp-traces-endpoint"),
        "export-metrics-to-file",
        "export-metrics-to-file-dir",
    )
)

_ONE_TOKEN = (
    "asyncrl's hooks give each token the version of the pass that sampled it, one token per pass: with "
    "several, versions and log-probs would be wrong"
)
_SWITCHES = (
    "it sets NCCL's switches in the server alone, and weights are exchanged with the trainer, whose switches "
    "must be the same"
)
REFUSED = {
    "--speculative": _ONE_TOKEN,
    "--decoupled-spec": _ONE_TOKEN,
    "--enable-multi-layer-eagle": _ONE_TOKEN,
    "--dllm": _ONE_TOKEN,
    "--enable-symm-mem": _SWITCHES,
    "--enable-nccl-nvls": _SWITCHES,
    "--enable-torch-symm-mem": _SWITCHES,
    "--moe-a2a-backend": _SWITCHES,
    "--deepep": _SWITCHES,
}
"""Beginning of an option -> why tokens or weights would be wrong with it, on servers of others too."""
FLOAT32_HEAD = "--enable-fp32-lm-head"
ROUTED_EXPERTS = "--enable-return-routed-experts"
KEYS = {
    FLOAT32_HEAD: "model.float32_logits",
    ROUTED_EXPERTS: "algorithm.routing_replay",
    "--model-path": "model.path",
    "--tokenizer-path": "model.path",
    "--dtype": "model.dtype",
    "--context-length": "model.context_tokens",
    "--revision": "model.revision",
    "--random-seed": "seed",
    "--port": "serving.first_port",
    "--tensor-parallel-size": "serving.tensor_parallel_size",
    "--tp-size": "serving.tensor_parallel_size",
    "--max-total-tokens": "serving.max_total_tokens",
    "--max-running-requests": "serving.max_running_requests",
    "--base-gpu-id": "placement.servers",
    "--gpu-id-step": "placement.servers",
    "--device": "placement.device",
    "--nnodes": "cluster.backend",
    "--api-key": "serving.api_key_variable",
}
"""Options that a key of the recipe stands for."""


def refuse_options(arguments: Sequence[str], key: str = "serving.extra_arguments") -> None:
    """Raises ValueError for the first option that is not allowed, with the reason; `key` names them."""
    if arguments and not arguments[0].startswith("--"):
        raise ValueError(f"{key} begins with {arguments[0]!r}, expected an option such as --log-level.")
    for option in option_names(arguments):
        if option in ALLOWED:
            continue
        if option in KEYS:
            why = f"asyncrl sets it. Remove it, and set {KEYS[option]}"
        elif (reason := reason_against(option)) is not None:
            why = f"{reason}. Remove it"
        else:
            known = sorted(ALLOWED)
            meant = did_you_mean(option, known, f" Known: {', '.join(known)}")
            why = f"it is not known to be safe for tokens and weights.{meant}"
        raise ValueError(f"{key} has {option}: {why.rstrip('.')}.")


def option_names(arguments: Sequence[str]) -> list[str]:
    """ "--name" of each option in a command line, without values."""
    return [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]


def reason_against(option: str) -> str | None:
    """Why no server of a run may have `option`; None where no reason is known."""
    return next((why for beginning, why in REFUSED.items() if option.startswith(beginning)), None)
