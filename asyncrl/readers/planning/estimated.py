"""Costs from the model's shape and the data sheet of a device, which is the one asked for or this machine's.

Decoding reads the weights once per step and each request's keys and values; training does the operations of
`asyncrl.model.flops`. Every assumption stands in a constant here and in the plan's output, which says where a
measurement is behind it; the others are guesses.
"""

from dataclasses import dataclass

from asyncrl.errors import InputError, did_you_mean
from asyncrl.model.flops import PEAK_TERAFLOPS, feed_forward_flops, score_flops, token_flops
from asyncrl.model.shape import ModelShape
from asyncrl.model.weights import num_parameters
from asyncrl.readers.planning.settings import Costs, Lengths, log_normal_lengths
from asyncrl.recipe import Recipe
from asyncrl.system.gpus import find_gpus

LIKELY_GPU = "H100"


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    teraflops: float
    """Dense bfloat16."""
    terabytes_per_second: float
    """Bandwidth of its memory."""
    memory_gb: float
    """10^9 bytes."""


GPUS = {
    name: Device(name, PEAK_TERAFLOPS[name], terabytes_per_second, memory_gb)
    for name, terabytes_per_second, memory_gb in (
        ("B200", 8.0, 180.0),
        ("H200", 4.8, 141.0),
        ("H100", 3.35, 80.0),
        ("A100", 2.0, 80.0),
        ("L40S", 0.86, 48.0),
        ("A10", 0.6, 24.0),
        ("RTX 4090", 1.0, 24.0),
    )
}


def find_device(recipe: Recipe, *, name: str | None, is_elsewhere: bool) -> tuple[Device, str]:
    """The device and a clause: why this one. `is_elsewhere` where the plan is for GPUs that this machine need
    not have. Raises InputError for a `name` without a data sheet."""
    if name is not None:
        if name not in GPUS:
            raise InputError(
                f"--device {name} is unknown. Known: {', '.join(GPUS)}.{did_you_mean(name, GPUS)}"
            )
        return GPUS[name], f"--device {name}"
    if is_elsewhere or recipe.cluster.backend == "ray" or not (gpus := find_gpus()):
        return GPUS[LIKELY_GPU], "a likely GPU; --device names another"
    known = next((device for name, device in GPUS.items() if name in gpus[0].name), None)
    if known is not None:
        return known, f"this machine has {gpus[0].name}"
    return GPUS[LIKELY_GPU], f"no data sheet is known of {gpus[0].name}; --device names one that is"


MEASURED_SHARE = 0.17
"""Share of the peak operations that training reaches (MFU): 16 to 18% in steps of Qwen3 0.6 B, 18% of 1.7 B,
on one H200 (docs/gpus.md)."""
MEASURED_PARAMETERS = 2e9
"""Largest model that is taken for one of these."""
GUESSED_SHARE = 0.35
"""MFU of larger ones."""
PREFILL_SHARE = 0.5
BANDWIDTH_SHARE = 0.6
"""Share of the memory bandwidth that decoding reaches."""
OVERHEAD_SECONDS = 0.004
"""Overhead of a pass: scheduling, kernel launches, sampling."""
LINK_BYTES_PER_SECOND = 20e9
"""Gradients between ranks, per rank."""
PUBLISHED_BYTES_PER_SECOND = {"disk": 2e9, "distributed": 20e9}
"""New weights to a server's GPU, by serving.weight_transport."""
PUBLISH_OVERHEAD_SECONDS = 0.5
ADMIT_SECONDS = 0.001
"""Controller time per group."""
MEAN_SHARE = 0.25
"""Mean length over rollout.max_new_tokens."""
SPREAD = 0.8
"""Standard deviation of the logarithm of lengths."""
STATIC_SHARE = 0.85
"""Share of a GPU's memory for SGLang's weights and cache, about, unless stated."""


def estimate_costs(
    shape: ModelShape, recipe: Recipe, lengths: Lengths, device: Device, *, num_ranks: int
) -> Costs:
    """Costs of the recipe's layout on `num_ranks` trainer processes."""
    parallel, tensor = recipe.trainer.parallel, recipe.serving.tensor_parallel_size
    copies = max(1, num_ranks // (parallel.tensor * parallel.pipeline * parallel.context))
    peak, bandwidth = device.teraflops * 1e12, device.terabytes_per_second * 1e12 * BANDWIDTH_SHARE
    weights = 2.0 * num_parameters(shape)
    active = (token_flops(shape) + 6.0 * shape.hidden_size * shape.vocab_size) / 6.0
    held = _cache_bytes_per_token(shape, tensor) * lengths.tokens_held
    prefill = 2.0 * active / (tensor * peak * PREFILL_SHARE)
    per_request = held / (tensor * bandwidth) + prefill
    # Scores, three times with the backward pass.
    looks = 3.0 * score_flops(shape, lengths.tokens_held)
    again = {"none": 0.0, "selective": feed_forward_flops(shape), "full": 6.0 * active + looks}
    is_measured = num_parameters(shape) <= MEASURED_PARAMETERS
    known = "16 to 18% were measured of Qwen3 0.6 B on one H200" if is_measured else "a guess"
    training = MEASURED_SHARE if is_measured else GUESSED_SHARE
    per_token = 6.0 * active + looks + again[recipe.trainer.recompute] / 3.0
    per_token /= peak * training * num_ranks
    # Gradients in float32, sent and received; the optimizer reads and writes its state of 18 bytes.
    share = num_parameters(shape) * copies / num_ranks
    reduced = 0.0 if copies == 1 else 8.0 * share / LINK_BYTES_PER_SECOND
    transport = recipe.serving.weight_transport
    install = weights / tensor / PUBLISHED_BYTES_PER_SECOND[transport]
    return Costs(
        decode_seconds=OVERHEAD_SECONDS + weights / (tensor * bandwidth),
        decode_seconds_per_request=per_request,
        train_seconds=reduced + 36.0 * share / copies / bandwidth,
        train_seconds_per_token=per_token,
        publish_seconds=PUBLISH_OVERHEAD_SECONDS + install,
        install_seconds=install,
        admit_seconds=ADMIT_SECONDS,
        prefill_group_seconds=prefill * lengths.prompt_tokens,
        prefill_seconds_per_token=prefill,
        origin=(
            f"estimated for {device.name} ({device.teraflops:.3g} TFLOPS, {device.terabytes_per_second:.3g} "
            f"TB/s): training at {training:.0%} of the peak ({known}); guesses: "
            f"decoding at {BANDWIDTH_SHARE:.0%} of the bandwidth and {1e3 * OVERHEAD_SECONDS:g} ms per step, "
            f"{LINK_BYTES_PER_SECOND / 1e9:g} GB/s between ranks and "
            f"{PUBLISHED_BYTES_PER_SECOND[transport] / 1e9:g} GB/s to servers ({transport})"
        ),
    )


def engine_cache_tokens(shape: ModelShape, recipe: Recipe, device: Device) -> float:
    """Cache tokens of a server whose engine decides how many; one at least."""
    ranks = recipe.serving.tensor_parallel_size
    room = ranks * STATIC_SHARE * device.memory_gb * 1e9
    return max(1.0, (room - 2.0 * num_parameters(shape)) / _cache_bytes_per_token(shape, ranks))


def assumed_lengths(recipe: Recipe, *, prompt_tokens: float) -> Lengths:
    """A distribution with a long tail, cut at rollout.max_new_tokens."""
    limit = recipe.rollout.max_new_tokens
    return log_normal_lengths(
        max(1.0, MEAN_SHARE * limit),
        SPREAD,
        limit=limit,
        samples_per_group=recipe.rollout.samples_per_group,
        prompt_tokens=prompt_tokens,
    )


def _cache_bytes_per_token(shape: ModelShape, ranks: int) -> float:
    """Numbers of 2 bytes each on all ranks of a server. One vector for all heads is on every rank."""
    return 2.0 * shape.attention_layers() * shape.cached_numbers() * (1 if shape.latent is None else ranks)
