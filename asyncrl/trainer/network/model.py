"""The policy as Megatron-core GPTModel chunks, built from the shape of a Hugging Face folder and a layout.

Only the positions that predict a response token reach the output layer, and what leaves the last stage are
log-probs, not logits.

Shapes: P packed tokens, C of them on this context-parallel rank, T response tokens, H hidden size.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from asyncrl.model.layout import ONE_PROCESS, Layout
from asyncrl.model.shape import ModelShape
from asyncrl.model.unsampled import Unsampled
from asyncrl.recipe import Model, Recipe
from asyncrl.recipe.sections.model import Lora
from asyncrl.serving.kernels import bitwise as kernels
from asyncrl.trainer.network.experts import freeze_routers
from asyncrl.trainer.network.layer_specs import block_spec, build_rotary, finish_chunk
from asyncrl.trainer.network.logprobs import output_logprobs
from asyncrl.trainer.network.megatron_config import transformer_config
from asyncrl.trainer.network.output_kernels import find_kernel
from asyncrl.trainer.packing.attention import pick_rows
from asyncrl.trainer.packing.attention_kernels import Heads
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.context_parallel import fill_in, own_predicting, own_tokens
from asyncrl.trainer.packing.limits import Limits

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class PolicyModel(GPTModel):
    """One chunk of the policy's layers; the first one embeds, the last one gives log-probs.

    After log-probs and entropies comes the output of each of the micro-batch's terms. Where a term restricts
    the tokens that were sampled from, log-probs are over these, and its output is the log-prob over all.
    """

    shape: ModelShape
    unsampled: Tensor | None
    """[U] int64, columns of this tensor rank's logits that are never sampled."""
    output_kernel = "torch"
    """One of `output_kernels.KERNELS`."""
    float32_logits = False
    is_bitwise = False
    """Whether log-probs are, bit for bit, those of servers (model.bitwise_agreement)."""

    def forward(self, micro: MicroBatch, temperature: float) -> Tensor | tuple[Tensor, ...]:
        """Hidden states [C, 1, H] for the next stage; from the last one log-probs [T] and entropies [T]."""
        hidden: Tensor = super().forward(
            own_tokens(micro.tokens)[None], None, None, packed_seq_params=micro.sequences
        )
        if not self.post_process:
            return hidden
        # Each tensor rank's part of the vocabulary gives a part of the gradient: both sum it over the ranks.
        if self.config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden)
        else:
            hidden = copy_to_tensor_model_parallel_region(hidden)
        return self._logprobs(hidden.squeeze(1), micro, temperature)

    def _postprocess(self, hidden_states: Tensor, **_: Any) -> Tensor:
        return hidden_states

    def _logprobs(self, hidden: Tensor, micro: MicroBatch, temperature: float) -> tuple[Tensor, ...]:
        weight = self._output_weight()
        targets, terms = micro.targets[micro.distinct], list(micro.terms.values())
        own, predicting = own_predicting(micro.predicting[micro.distinct], len(hidden))
        if own is not None:
            terms = [term.of_rows(own, len(targets)) for term in terms]
        # Prompts are often the longer half: their logits would be computed, stored and thrown away.
        values = output_logprobs(
            pick_rows(hidden, predicting),
            weight,
            targets if own is None else targets[own],
            temperature * self.shape.logits_divisor,
            vocab_size=self.shape.vocab_size,
            unsampled=self.unsampled,
            group=parallel_state.get_tensor_model_parallel_group(),
            float32_logits=self.float32_logits,
            is_bitwise=self.is_bitwise,
            terms=terms,
            cap=self.shape.logits_cap,
            kernel=self.output_kernel,
        )
        if own is not None:
            values = tuple(fill_in(torch.stack(values), own, len(targets)))
        for i, term in enumerate(terms, start=2):
            if term.restricts:
                whole = values[0]
                values = whole - values[i], *values[1:i], whole, *values[i + 1 :]
        return tuple(value.index_select(0, micro.copies) for value in values)

    def _output_weight(self) -> Tensor:
        """[vocabulary of the tensor rank, hidden], whole where weights are gathered during the pass.

        Megatron waits for a layer's weights in a hook before its forward pass. This layer's never comes.
        """
        for hook in self.output_layer._forward_pre_hooks.values():
            hook(self.output_layer, ())
        is_tied = self.share_embeddings_and_output_weights
        weight: Tensor = self.shared_embedding_or_output_weight() if is_tied else self.output_layer.weight
        return weight


class Policy(torch.nn.ModuleList):
    """This rank's chunks in the order of their layers; one, except under virtual pipeline stages."""

    lora: Lora | None = None
    """The adapters that are trained in place of all weights."""

    def __iter__(self) -> Iterator[GPTModel]:
        return super().__iter__()

    @property
    def config(self) -> TransformerConfig:
        """The one that all chunks share."""
        return next(iter(self)).config

    def sharded_state_dict(self, prefix: str = "", *arguments: Any, **keywords: Any) -> dict[str, Any]:
        """Megatron's description of every tensor, under the names that `load_state_dict` takes."""
        return {
            f"{prefix}{i}.{name}": value
            for i, chunk in enumerate(self)
            for name, value in chunk.sharded_state_dict("", *arguments, **keywords).items()
        }


def build_policy(
    shape: ModelShape,
    dtype: torch.dtype,
    layout: Layout = ONE_PROCESS,
    *,
    recompute: str = "none",
    kind: type[GPTModel] = PolicyModel,
    unsampled: Unsampled | None = None,
    float32_logits: bool = False,
    is_bitwise: bool = False,
    lora: Lora | None = None,
    has_frozen_routers: bool = False,
) -> Policy:
    """This rank's part of a model of `shape` with random weights, its chunks of `kind`, which samples all
    tokens but `unsampled`. With `lora` adapters of zeros, which alone are trained."""
    config = transformer_config(shape, dtype, layout, recompute=recompute, has_adapters=lora is not None)
    if is_bitwise:
        config.activation_func = kernels.silu
    stages = [None] if layout.virtual_stages == 1 else list(range(layout.virtual_stages))
    policy = Policy([_build_chunk(shape, config, layout, stage, kind, is_bitwise, lora) for stage in stages])
    policy.lora = lora
    if has_frozen_routers:
        freeze_routers(policy)
    num_rows = layout.padded_vocabulary(shape.vocab_size) // layout.tensor
    first = num_rows * parallel_state.get_tensor_model_parallel_rank()
    ids = unsampled.ids if unsampled is not None else ()
    columns = [each - first for each in ids if first <= each < first + num_rows]
    kernel = find_kernel(device(), dtype)
    for chunk in policy:
        chunk.unsampled = torch.tensor(columns, device=device()) if columns else None
        chunk.output_kernel = kernel
        chunk.float32_logits = float32_logits
        chunk.is_bitwise = is_bitwise
    return policy


def make_policy(shape: ModelShape, recipe: Recipe, layout: Layout, unsampled: Unsampled) -> Policy:
    """The policy of a recipe, with random weights."""
    return build_policy(
        shape,
        DTYPES[recipe.model.dtype],
        layout,
        recompute=recipe.trainer.recompute,
        unsampled=unsampled,
        float32_logits=recipe.model.float32_logits,
        is_bitwise=recipe.model.bitwise_agreement,
        lora=recipe.model.lora,
        has_frozen_routers=recipe.trainer.router.frozen,
    )


def build_frozen(
    shape: ModelShape, section: Model, layout: Layout, unsampled: Unsampled
) -> tuple[Policy, list[torch.nn.Module]]:
    """A model of the policy's shape, layout and type whose weights are still to be filled in, and this rank's
    chunks of it, to run."""
    model = build_policy(
        shape,
        DTYPES[section.dtype],
        layout,
        unsampled=unsampled,
        float32_logits=section.float32_logits,
        is_bitwise=section.bitwise_agreement,
    )
    model.requires_grad_(False)
    if section.dtype != "float32":
        return model, [Float16Module(chunk.config, chunk) for chunk in model]
    return model, list(model)


def _build_chunk(
    shape: ModelShape,
    config: TransformerConfig,
    layout: Layout,
    stage: int | None,
    kind: type[GPTModel],
    is_bitwise: bool,
    lora: Lora | None,
) -> GPTModel:
    place = {"ignore_virtual": False, "vp_stage": stage}
    # Megatron-core 0.19 builds no norm of queries and keys without it.
    config.qk_layernorm = shape.has_qk_norm or shape.has_wide_qk_norm
    model = kind(
        config,
        block_spec(config, shape, stage, is_bitwise=is_bitwise, lora=lora),
        vocab_size=layout.padded_vocabulary(shape.vocab_size),
        max_sequence_length=shape.max_positions,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=shape.is_tied,
        parallel_output=True,
        pre_process=parallel_state.is_pipeline_first_stage(**place),
        post_process=parallel_state.is_pipeline_last_stage(**place),
        vp_stage=stage,
    )
    # In training it means norms of single heads, whose gradients are summed over tensor ranks: a wide one has
    # the whole gradient of its own heads.
    config.qk_layernorm = shape.has_qk_norm
    model.shape = shape
    model.rotary_pos_emb = build_rotary(shape, config, is_bitwise)
    finish_chunk(model, shape, layout, lora)
    # torch's RMSNorm, unlike Megatron's layers, looks neither at params_dtype nor at the device.
    return model.to(device=device(), dtype=config.params_dtype)


def device() -> torch.device:
    """Where this process computes."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def rank_heads(shape: ModelShape, layout: Layout, dtype: torch.dtype) -> Heads:
    """The attention heads that this rank computes: under context parallelism fewer, but for all tokens."""
    kv_count = shape.num_kv_heads // layout.tensor
    return Heads(
        count=shape.num_heads // layout.tensor // layout.context,
        # Where there are fewer than ranks, each rank has one that others have too.
        kv_count=kv_count // math.gcd(kv_count, layout.context),
        size=max(shape.head_size, shape.value_size),
        dtype=dtype,
        limits=Limits(shape.window if shape.sliding_layers else None, shape.attention_cap, shape.has_sinks),
    )


def half_device(dtype: torch.dtype) -> str | None:
    """Name of the GPU where this process computes in 16 bits, bfloat16 and float16 as fast as each other;
    None for float32 or a CPU."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() and dtype.itemsize == 2 else None
