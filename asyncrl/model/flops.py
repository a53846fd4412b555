"""Floating-point operations of a training step, and the peak of the hardware: their quotient is the MFU.

Counts what the model needs, multiplications and additions each as one: 2 per weight of a matrix and token
forward, twice that backward, and attention's scores (PaLM: Chowdhery et al. 2022, appendix B). Neither the
embedding's look-up nor norms, nor activations computed again. A shared prompt is counted once, as it is
computed; the output layer sees response tokens only. Under adapters the matrices have no gradient: a backward
pass costs them as much as a forward pass, and the adapters' own products are not counted. No torch.
"""

from asyncrl.model.shape import ModelShape

PEAK_TERAFLOPS = {
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "H800": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "A10": 125.0,
    "RTX 4090": 165.0,
}
"""Dense bfloat16 with float32 accumulation, by a part of the device's name; the first that fits counts."""


def token_flops(shape: ModelShape) -> float:
    """FLOPs of one packed token in forward and backward, without attention's scores and the output layer."""
    attention = shape.attention_layers() * shape.attention_weights()
    return 6.0 * (attention + len(shape.delta_layers) * _linear_attention(shape)) + feed_forward_flops(shape)


def feed_forward_flops(shape: ModelShape) -> float:
    """The part of `token_flops` that feed-forward networks have, with their routers."""
    num_sparse = shape.expert_layers()
    dense = 3 * shape.hidden_size * shape.ffn_size
    width = shape.expert_ffn_size * shape.experts_per_token + shape.shared_expert_size
    outputs_of_gates = (shape.num_experts or 0) + int(shape.has_shared_expert_gate)
    sparse = shape.hidden_size * (3 * width + outputs_of_gates)
    return 6.0 * ((shape.num_layers - num_sparse) * dense + num_sparse * sparse)


def _linear_attention(shape: ModelShape) -> int:
    """Multiplications of a token in a layer of linear attention, forward: its matrices, the convolution, and
    what it reads, changes and gives of each state."""
    if (net := shape.delta_net) is None:
        return 0
    matrices = 2 * net.key_size + 3 * net.value_size + 2 * net.num_value_heads
    return shape.hidden_size * matrices + net.conv_width * net.num_channels() + 3 * net.state_size()


def pass_flops(
    shape: ModelShape,
    *,
    num_tokens: int,
    num_targets: int,
    num_looks: float,
    trains_matrices: bool = True,
) -> float:
    """FLOPs of one forward and backward over packed tokens, of which `num_targets` reach the output layer.

    A token at position p looks at p + 1 tokens; `num_looks` is the sum over all.
    """
    layers = token_flops(shape) * num_tokens
    output = 6.0 * shape.hidden_size * shape.vocab_size * num_targets
    matrices = (layers + output) * (1.0 if trains_matrices else 2 / 3)
    return matrices + 3 * score_flops(shape, num_looks)


def generation_flops(
    shape: ModelShape,
    *,
    num_prompt_tokens: float,
    num_sampled_tokens: float,
    num_fed_tokens: float,
    num_looks: float,
) -> float:
    """FLOPs of sampling: a forward pass per prompt token and per sampled token that is fed back
    (`num_fed_tokens`: all but a response's last), the output layer per sampled token, and `num_looks` as in
    `pass_flops`.

    A prompt counts once for all responses that share it.
    """
    layers = token_flops(shape) / 3 * (num_prompt_tokens + num_fed_tokens)
    output = 2.0 * shape.hidden_size * shape.vocab_size * num_sampled_tokens
    return layers + output + score_flops(shape, num_looks)


def score_flops(shape: ModelShape, num_looks: float) -> float:
    """FLOPs of the forward products with keys and with values, one of a head size each per look and head."""
    return 2.0 * num_looks * shape.num_heads * (shape.head_size + shape.value_size) * shape.attention_layers()


def matrix_weights(shape: ModelShape) -> int:
    """N of the rule of thumb, 2N forward and 6N to train: the weights of the matrices that a token meets,
    with the output layer, without the embedding's look-up, of experts only those that the router chooses."""
    return round(token_flops(shape) / 6) + shape.hidden_size * shape.vocab_size


def peak_flops(teraflops: float | None, device_name: str | None) -> float | None:
    """Per second of one device: the recipe's figure, else that of a known GPU in bfloat16, else None."""
    if teraflops is not None:
        return teraflops * 1e12
    if device_name is None:
        return None
    return next((peak * 1e12 for part, peak in PEAK_TERAFLOPS.items() if part in device_name), None)
