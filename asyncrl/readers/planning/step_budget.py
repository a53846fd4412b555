"""Budget of a trainer's step on paper: operations and bytes per packed token of each part, which of them
bounds it, and its time, to hold a measurement against.

Counts what one GPU does to a token in bfloat16 with whole layers, and with experts dealt among `expert`
ranks. A part takes what its operations or its bytes take, whichever is longer, at the shares of a device's
data sheet below, which are assumptions. Messages of tensor and pipeline ranks, waits for the host and for
other ranks, and sums of gradients over ranks are not counted.

Shapes: H hidden size, Q numbers of a token's queries, K of its keys and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.model.flops import feed_forward_flops, pass_flops, score_flops, token_flops
from asyncrl.model.memory import parameters_by_kind
from asyncrl.model.shape import ModelShape
from asyncrl.readers.planning.estimated import Device, assumed_lengths
from asyncrl.recipe import Recipe

PRODUCT_SHARE = 0.7
"""Share of a device's peak that large matrix products reach."""
MEMORY_SHARE = 0.8
"""Share of its memory bandwidth that kernels reach which read and write."""
LINK_BYTES_PER_SECOND = 300e9
"""Between the GPUs of a machine, of tokens on their way to experts."""
PROMPT_TOKENS = 512
"""Prompt length that is assumed for a recipe: its data are not read here."""
OPTIMIZER_BYTES = 36
"""Adam reads and writes weight, gradient, float32 weight and two moments."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Costs of a step in which kernels differ."""

    softmax_bytes: float
    """Per logit of bfloat16, forward and backward, with the products that write and read it."""
    attention_share: float
    """Share of the peak that attention reaches."""
    head_passes: int
    """Reads and writes of queries and keys beside attention: rotations, norms, copies; in both passes."""


TORCH_KERNELS = Kernels(72.0, 0.35, 10)
"""A pass per operation on logits and rotations; FlashAttention 2."""
FUSED_KERNELS = Kernels(14.0, 0.6, 6)
"""`trainer.packing.triton_kernels` and FlashAttention 4; both shares are guesses."""


@dataclass(frozen=True, slots=True)
class Load:
    """Tokens of a step."""

    looks: float = 1600.0
    """Keys that a token attends to, in the mean."""
    target_share: float = 0.95
    """Packed tokens that reach the output layer."""
    per_micro_batch: int = 16_384
    per_step: int = 262_144
    """Packed tokens of a rank."""
    recompute: str = "none"
    expert: int = 1
    """Ranks that experts are dealt among."""


def load_of(recipe: Recipe) -> Load:
    """The load of a recipe, of the lengths that a simulation assumes."""
    lengths, rollout, trainer = (
        assumed_lengths(recipe, prompt_tokens=PROMPT_TOKENS),
        recipe.rollout,
        recipe.trainer,
    )
    parallel = trainer.parallel
    copies = max(1, trainer.num_processes // (parallel.tensor * parallel.pipeline * parallel.context))
    responses = rollout.groups_per_batch * rollout.samples_per_group * lengths.mean()
    tokens = responses + rollout.groups_per_batch * PROMPT_TOKENS
    return Load(
        looks=lengths.tokens_held,
        target_share=responses / tokens,
        per_micro_batch=trainer.tokens_per_micro_batch,
        per_step=max(1, round(tokens / copies)),
        recompute=trainer.recompute,
        expert=parallel.expert,
    )


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    flops: float
    """Per packed token, as are `num_bytes` and `link_bytes`."""
    num_bytes: float
    link_bytes: float = 0.0
    share: float = PRODUCT_SHARE
    """Share of the peak that its operations reach."""

    def seconds(self, device: Device) -> tuple[float, str]:
        """(per packed token, what bounds it)."""
        bounds = {
            "operations": self.flops / (self.share * 1e12 * device.teraflops),
            "memory": self.num_bytes / (MEMORY_SHARE * 1e12 * device.terabytes_per_second),
            "links": self.link_bytes / LINK_BYTES_PER_SECOND,
        }
        longest = max(bounds, key=lambda name: bounds[name])
        return bounds[longest], longest


def step_parts(shape: ModelShape, kernels: Kernels, load: Load) -> list[Part]:
    layers, hidden = shape.num_layers, shape.hidden_size
    queries, keys = shape.num_heads * shape.head_size, 2 * shape.num_kv_heads * shape.head_size
    num_sparse = shape.expert_layers()
    sparse_width = shape.experts_per_token * shape.expert_ffn_size + shape.shared_expert_size
    width = ((layers - num_sparse) * shape.ffn_size + num_sparse * sparse_width) / layers
    copies = (layers - num_sparse + num_sparse * shape.experts_per_token) / layers
    again = {"none": 0.0, "selective": feed_forward_flops(shape) / 3, "full": token_flops(shape) / 3}
    counts = parameters_by_kind(shape)
    experts = counts["experts"] / load.expert
    weights = counts["attention"] + counts["mlp"] + experts
    optimized = sum(counts.values()) - counts["experts"] + experts
    # Read forward and backward, and a float32 gradient that is read and written.
    of_weights = 12.0 * weights / load.per_micro_batch
    # In and out, of the forward product and of the two backward.
    touched = hidden + queries + keys + queries + hidden + copies * 2 * hidden + 3 * width
    vocabulary = shape.vocab_size * load.target_share
    output = 6.0 * hidden * vocabulary
    # Norms, rotations, activation and residuals: numbers that are read and written, forward and backward.
    passes = 16 * hidden + kernels.head_passes * (queries + keys) + 8 * width
    if load.recompute != "none":
        passes += 4 * hidden + 3 * width
    # q, k, v and outputs are laid out with copies of what is shared, whose gradients are summed in float32.
    laid_out = (2 + 2 + 2 + 10) * (2 * queries + keys)
    # To the experts and back, forward and backward, 2 bytes each.
    sent = (1 - 1 / load.expert) * 4 * 2.0 * num_sparse * shape.experts_per_token * hidden
    return [
        Part(
            "products of the layers",
            token_flops(shape) + again[load.recompute],
            layers * 6.0 * touched + of_weights,
        ),
        Part(
            "attention",
            3.5 * score_flops(shape, load.looks),
            shape.attention_layers() * 2.0 * (6 * queries + 6 * keys),
            share=kernels.attention_share,
        ),
        Part("copies for attention", 0.0, shape.attention_layers() * float(laid_out)),
        # The logits are computed again in the backward pass.
        Part(
            "output layer's products", output * 4 / 3, 12.0 * hidden * shape.vocab_size / load.per_micro_batch
        ),
        Part("softmax over the vocabulary", 0.0, kernels.softmax_bytes * vocabulary),
        Part("norms, rotations, activations", 0.0, layers * 2.0 * passes),
        Part("tokens to experts and back", 0.0, 0.0, sent),
        Part("Adam", 0.0, OPTIMIZER_BYTES * optimized / load.per_step),
    ]


def utilisation(shape: ModelShape, parts: Sequence[Part], load: Load, device: Device) -> float:
    """MFU of a step that consists of `parts`."""
    needed = pass_flops(shape, num_tokens=1, num_targets=1, num_looks=load.looks)
    seconds = sum(part.seconds(device)[0] for part in parts)
    return needed / (1e12 * device.teraflops * seconds)


def budget_table(shape: ModelShape, device: Device, load: Load) -> list[str]:
    """Lines of a table: each part with torch's kernels and with fused ones."""
    lines = ["| part | GFLOP | KB | bound by | us | us, fused |", "|---|---|---|---|---|---|"]
    plain, fused = (step_parts(shape, kernels, load) for kernels in (TORCH_KERNELS, FUSED_KERNELS))
    for before, after in zip(plain, fused, strict=True):
        if not before.seconds(device)[0]:
            continue
        (now, bound), (then, _) = before.seconds(device), after.seconds(device)
        flops = f"{before.flops / 1e9:.2f}" if before.flops else "0"
        moved = f"{(before.num_bytes + before.link_bytes) / 1e3:,.0f}"
        lines.append(f"| {before.name} | {flops} | {moved} | {bound} | {1e6 * now:.2f} | {1e6 * then:.2f} |")
    totals = [sum(part.seconds(device)[0] for part in parts) for parts in (plain, fused)]
    shares = [utilisation(shape, parts, load, device) for parts in (plain, fused)]
    cells = [f"{1e6 * total:.1f}, MFU {share:.0%}" for total, share in zip(totals, shares, strict=True)]
    return [*lines, f"| all | | | | {cells[0]} | {cells[1]} |"]
