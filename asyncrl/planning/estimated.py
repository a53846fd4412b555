"""Costs from the model's shape and a device's data sheet, where nothing was measured.

Decoding reads the weights once per step and each request's keys and values; training does the operations of
`asyncrl.model.flops`. Every assumption stands in a constant here and in the plan's output.
"""

from dataclasses import dataclass

from asyncrl.model.flops import PEAK_TERAFLOPS, token_flops
from asyncrl.model.folder import ModelShape
from asyncrl.planning.lengths import Lengths, LogNormalLengths
from asyncrl.planning.settings import Costs
from asyncrl.recipe import Recipe
from asyncrl.recipe.sections.serving import CPU_CACHE_TOKENS

TRAINING_SHARE = 0.35
"""Share of the peak operations that training reaches (MFU)."""
PREFILL_SHARE = 0.5
BANDWIDTH_SHARE = 0.6
"""Share of the memory bandwidth that decoding reaches."""
OVERHEAD_SECONDS = 0.004
"""Overhead of a pass: scheduling, kernel launches, sampling."""
LINK_BYTES_PER_SECOND = 20e9
"""Between ranks and to servers, per rank: gradients and new weights."""
PUBLISH_OVERHEAD_SECONDS = 0.5
ADMIT_SECONDS = 0.001
"""Controller time per group."""
MEAN_SHARE = 0.25
"""Mean length over rollout.max_new_tokens, unless stated."""
SPREAD = 0.8
"""Standard deviation of the logarithm of lengths, unless stated."""
PROMPT_TOKENS = 256.0
STATIC_SHARE = 0.85
"""Share of a GPU's memory for SGLang's weights and cache, about, unless stated."""


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    teraflops: float
    """Dense bfloat16."""
    terabytes_per_second: float
    """Bandwidth of its memory."""
    memory_gb: float
    """10^9 bytes."""


DEVICES = {
    device.name: device
    for device in (
        Device("B200", PEAK_TERAFLOPS["B200"], 8.0, 180.0),
        Device("H200", PEAK_TERAFLOPS["H200"], 4.8, 141.0),
        Device("H100", PEAK_TERAFLOPS["H100"], 3.35, 80.0),
        Device("A100", PEAK_TERAFLOPS["A100"], 2.0, 80.0),
        Device("L40S", PEAK_TERAFLOPS["L40S"], 0.86, 48.0),
        Device("A10", PEAK_TERAFLOPS["A10"], 0.6, 24.0),
        Device("RTX 4090", PEAK_TERAFLOPS["RTX 4090"], 1.0, 24.0),
        # One core of a server, as far as a figure for it makes sense.
        Device("CPU", 0.05, 0.01, 16.0),
    )
}


def estimate_costs(
    shape: ModelShape, recipe: Recipe, lengths: Lengths, device: Device, *, num_ranks: int | None = None
) -> Costs:
    """Costs of the recipe's layout, with `num_ranks` trainer processes in place of its own."""
    ranks = num_ranks or recipe.trainer.num_processes
    parallel, tensor = recipe.trainer.parallel, recipe.serving.tensor_parallel_size
    copies = max(1, ranks // (parallel.tensor * parallel.pipeline * parallel.context))
    peak, bandwidth = device.teraflops * 1e12, device.terabytes_per_second * 1e12 * BANDWIDTH_SHARE
    weights = 2.0 * shape.num_parameters()
    active = (token_flops(shape) + 6.0 * shape.hidden_size * shape.vocab_size) / 6.0
    held = 2.0 * 2 * shape.num_layers * shape.num_kv_heads * shape.head_size * lengths.tokens_held()
    prefill = 2.0 * active / (tensor * peak * PREFILL_SHARE)
    per_request = held / (tensor * bandwidth) + prefill
    # Scores: four operations per look, head and head size, three times that with the backward pass.
    looks = 12.0 * lengths.tokens_held() * shape.num_heads * shape.head_size * shape.num_layers
    recomputed = 4.0 / 3.0 if recipe.trainer.recompute == "full" else 1.0
    per_token = recomputed * (6.0 * active + looks) / (peak * TRAINING_SHARE * ranks)
    # Gradients in float32, sent and received; the optimizer reads and writes its state of 18 bytes.
    share = shape.num_parameters() * copies / ranks
    reduced = 0.0 if copies == 1 else 8.0 * share / LINK_BYTES_PER_SECOND
    install = weights / tensor / LINK_BYTES_PER_SECOND
    return Costs(
        decode_seconds=OVERHEAD_SECONDS + weights / (tensor * bandwidth),
        decode_seconds_per_request=per_request,
        train_seconds=reduced + 36.0 * share / copies / bandwidth,
        train_seconds_per_token=per_token,
        publish_seconds=PUBLISH_OVERHEAD_SECONDS + install,
        install_seconds=install,
        admit_seconds=ADMIT_SECONDS,
        prefill_pass_seconds=OVERHEAD_SECONDS,
        prefill_group_seconds=prefill * lengths.prompt_tokens,
        prefill_seconds_per_token=prefill,
        origin=(
            f"estimated for {device.name} ({device.teraflops:.3g} TFLOPS, {device.terabytes_per_second:.3g} "
            f"TB/s): training at {TRAINING_SHARE:.0%} of the peak, decoding at {BANDWIDTH_SHARE:.0%} of the "
            f"bandwidth and {1e3 * OVERHEAD_SECONDS:g} ms per step, "
            f"{LINK_BYTES_PER_SECOND / 1e9:g} GB/s between devices"
        ),
    )


def engine_cache_tokens(shape: ModelShape, recipe: Recipe, device: Device) -> float:
    """Cache tokens of a server whose engine decides how many; one at least."""
    if device.name == "CPU":
        return CPU_CACHE_TOKENS
    per_token = 2.0 * 2 * shape.num_layers * shape.num_kv_heads * shape.head_size
    room = recipe.serving.tensor_parallel_size * STATIC_SHARE * device.memory_gb * 1e9
    return max(1.0, (room - 2.0 * shape.num_parameters()) / per_token)


def assumed_lengths(
    recipe: Recipe,
    *,
    mean_tokens: float | None = None,
    spread: float | None = None,
    prompt_tokens: float | None = None,
) -> LogNormalLengths:
    """A distribution with a long tail, cut at rollout.max_new_tokens."""
    limit = recipe.rollout.max_new_tokens
    return LogNormalLengths(
        mean_tokens=max(1.0, MEAN_SHARE * limit) if mean_tokens is None else mean_tokens,
        spread=SPREAD if spread is None else spread,
        limit=limit,
        prompt_tokens=PROMPT_TOKENS if prompt_tokens is None else prompt_tokens,
    )
