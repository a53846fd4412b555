"""Costs from the model's shape and a device's data sheet.

Decoding reads the weights once per step and each request's keys and values; training does the operations of
`asyncrl.model.flops`. Every assumption stands in a constant here and in the plan's output, which says where a
measurement is behind it; the others are guesses.
"""

from asyncrl.model.flops import feed_forward_flops, score_flops, token_flops
from asyncrl.model.shape import ModelShape
from asyncrl.model.weights import num_parameters
from asyncrl.readers.planning.devices import Device
from asyncrl.readers.planning.distributions import Lengths, log_normal_lengths
from asyncrl.readers.planning.settings import Costs
from asyncrl.recipe import Recipe

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
