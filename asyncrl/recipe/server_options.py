"""Which command-line options of SGLang 0.5.23 a recipe may add to its servers, and why others are refused.

An allowed option decides about memory, scheduling, kernels or logs, and leaves alone which token each pass
gives, its log-prob, its policy version and the weights that are loaded. `asyncrl keys` names the list.
"""

from collections.abc import Mapping, Sequence

STATES_PER_REQUEST = 4
"""States of linear attention that a server on a CPU has room for, per request at once: SGLang 0.5.23 needs
three of each, the rest are those of prefixes."""
ALLOWED = frozenset(
    f"--{name}"
    for name in (
        # memory
        *("mem-fraction-static", "page-size", "radix-eviction-policy"),
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
    "asyncrl's hooks give each token the version of the pass that sampled it, one token per pass, and mask "
    "the tokens that are never sampled where a token is sampled: with several tokens per pass, which are "
    "verified elsewhere, versions and log-probs would be wrong"
)
_SWITCHES = (
    "it sets NCCL's switches in the server alone, and weights are exchanged with the trainer, whose switches "
    "must be the same"
)
_PARTS = (
    "a request would pass through two servers, and no publish reaches both between the same two tokens: keys "
    "and values of one version would be read under the name of another"
)
_WEIGHTS = "weights come from publications, whose digests a server compares as its own loader gets them"
_HOST_CACHE = (
    "prefixes are kept apart by version, so what a tier of host memory holds is of no use after the next "
    "publish, and asyncrl's hooks know the prefix cache on the device alone"
)
_MOVED = "it moves or doubles experts while a server runs, and a publish must reach each copy"
_LORA = "adapters are merged into the weights that are published; model.lora trains some"
_STAGES = "weights are broadcast to tensor ranks alone; divide the model by serving.tensor_parallel_size"
_SET = "asyncrl sets it"
_DISTRIBUTION = "tokens would come from another distribution than the one whose log-probs are trained"
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
    "--disaggregation": _PARTS,
    "--enable-eplb": _MOVED,
    "--eplb": _MOVED,
    "--ep-num-redundant-experts": _MOVED,
    "--init-expert-location": _MOVED,
    "--rl-on-policy-target": "log-probs would be of logits in bfloat16, which the trainer does not compute",
}
"""Beginning of an option -> why tokens or weights would be wrong with it, on servers of others too."""
UNUSED = {
    "--load-format": _WEIGHTS,
    "--model-loader-extra-config": _WEIGHTS,
    "--weight-cache": _WEIGHTS,
    "--weight-version": _WEIGHTS,
    "--checkpoint-engine": _WEIGHTS,
    "--custom-weight-loader": _WEIGHTS,
    "--remote-instance-weight-loader": _WEIGHTS,
    "--rl-quant-profile": _WEIGHTS,
    "--enable-hierarchical-cache": _HOST_CACHE,
    "--hicache": _HOST_CACHE,
    "--enable-hicache": _HOST_CACHE,
    "--enable-lmcache": _HOST_CACHE,
    "--disable-radix-cache": "the samples of a group share their prompt in it, apart for each version",
    "--enable-lora": _LORA,
    "--lora": _LORA,
    "--max-lora": _LORA,
    "--preferred-sampling-params": _DISTRIBUTION,
    "--enable-custom-logit-processor": _DISTRIBUTION,
    "--config": "it reads more options from a file, which nothing would check",
    "--json-model-override-args": "servers and trainer build the model from one config.json",
    "--pipeline-parallel-size": _STAGES,
    "--pp-": _STAGES,
    "--incremental-streaming-output": _SET,
    "--skip-tokenizer-init": _SET,
}
"""Beginning of an option -> why a recipe does not give it to its servers."""
FLOAT32_HEAD = "--enable-fp32-lm-head"
ROUTED_EXPERTS = "--enable-return-routed-experts"
QUANTIZATION = "--quantization"
CACHE_TYPE = "--kv-cache-dtype"
EXPERT_RANKS = "--expert-parallel-size"
ATTENTION_RANKS = "--attention-data-parallel-size"
KEYS = {
    FLOAT32_HEAD: "model.float32_logits",
    ROUTED_EXPERTS: "algorithm.routing_replay",
    QUANTIZATION: "serving.quantization",
    CACHE_TYPE: "serving.kv_cache_dtype",
    EXPERT_RANKS: "serving.expert_parallel_size",
    "--ep-size": "serving.expert_parallel_size",
    "--ep": "serving.expert_parallel_size",
    ATTENTION_RANKS: "serving.attention_data_parallel_size",
    "--attn-dp-size": "serving.attention_data_parallel_size",
    "--enable-dp-attention": "serving.attention_data_parallel_size",
    "--dp-size": "serving.num_servers",
    "--data-parallel-size": "serving.num_servers",
    "--model-path": "model.path",
    "--model": "model.path",
    "--tokenizer-path": "model.path",
    "--dtype": "model.dtype",
    "--context-length": "model.context_tokens",
    "--revision": "model.revision",
    "--random-seed": "seed",
    "--host": "cluster.bind_address",
    "--port": "serving.first_port",
    "--tensor-parallel-size": "serving.tensor_parallel_size",
    "--tp-size": "serving.tensor_parallel_size",
    "--max-total-tokens": "serving.max_total_tokens",
    "--max-running-requests": "serving.max_running_requests",
    "--stream-interval": "rollout.stream_interval_tokens",
    "--base-gpu-id": "placement.servers",
    "--gpu-id-step": "placement.servers",
    "--device": "placement.device",
    "--enable-memory-saver": "placement.colocated",
    "--nnodes": "cluster.backend",
    "--api-key": "serving.api_key_variable",
}
"""Options that a key of the recipe stands for."""


def refuse_options(arguments: Sequence[str], key: str = "serving.extra_arguments") -> None:
    """Raises ValueError for the first option of which asyncrl knows why a server must not have it; `key`
    names them. Options that are not known here are refused before servers start, when the installed SGLang
    has said which it has (launch/engine_options.py)."""
    if arguments and not arguments[0].startswith("--"):
        raise ValueError(f"{key} begins with {arguments[0]!r}, expected an option such as --log-level.")
    for option in option_names(arguments):
        if option in ALLOWED:
            continue
        if option in KEYS:
            raise ValueError(f"{key} has {option}: asyncrl sets it. Remove it, and set {KEYS[option]}.")
        why = reason_against(option) or _first(UNUSED, option)
        if why is not None:
            raise ValueError(f"{key} has {option}: {why}. Remove it.")


def option_names(arguments: Sequence[str]) -> list[str]:
    """ "--name" of each option in a command line, without values."""
    return [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]


def reason_against(option: str) -> str | None:
    """Why no server of a run may have `option`; None where no reason is known."""
    return _first(REFUSED, option)


def _first(reasons: Mapping[str, str], option: str) -> str | None:
    return next((why for beginning, why in reasons.items() if option.startswith(beginning)), None)
