"""The policy as a Megatron-core GPTModel, built from the shape of a Hugging Face folder.

Only the positions that predict a response token reach the output layer. The layer spec is chosen here: the
local spec with our packed attention on CPU; Transformer Engine's goes in at `layer_spec`.
"""

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from asyncrl.trainer.attention import PackedAttention, PackedRotary, PackedSequences
from asyncrl.trainer.folder import ModelShape

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class PolicyModel(GPTModel):
    """GPTModel whose output layer sees chosen positions only."""

    def forward(self, tokens: Tensor, sequences: PackedSequences, predicting: Tensor) -> Tensor:
        """Packed tokens [P] and positions [T] among them -> logits [T, vocabulary]."""
        hidden = super().forward(tokens[None], None, None, packed_seq_params=sequences, loss_mask=predicting)
        return hidden

    def _postprocess(self, hidden_states: Tensor, *, loss_mask: Tensor, **_) -> Tensor:
        weight = (
            self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        )
        # Prompts are often the longer half: their logits would be computed, stored and thrown away.
        logits, _ = self.output_layer(hidden_states.index_select(0, loss_mask), weight=weight)
        return logits.squeeze(1)


def build_model(shape: ModelShape, dtype: torch.dtype) -> PolicyModel:
    """A model of `shape` with random weights."""
    config = transformer_config(shape, dtype)
    model = PolicyModel(
        config,
        layer_spec(config),
        vocab_size=shape.vocab_size,
        max_sequence_length=shape.max_positions,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=shape.is_tied,
        parallel_output=True,
    )
    model.rotary_pos_emb = PackedRotary(
        shape.head_size,
        rotary_percent=1.0,
        rotary_base=shape.rope_theta,
        rope_scaling=shape.rope_scaling_factor is not None,
        rope_scaling_factor=shape.rope_scaling_factor or 1.0,
        use_cpu_initialization=config.use_cpu_initialization,
    )
    # torch's RMSNorm, unlike Megatron's layers, does not look at params_dtype.
    return model.to(dtype)


def layer_spec(config: TransformerConfig) -> ModuleSpec:
    spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization=config.normalization)
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    return spec


def transformer_config(shape: ModelShape, dtype: torch.dtype) -> TransformerConfig:
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        num_query_groups=shape.num_kv_heads,
        kv_channels=shape.head_size,
        ffn_hidden_size=shape.ffn_size,
        layernorm_epsilon=shape.norm_epsilon,
        normalization="RMSNorm",
        qk_layernorm=shape.has_qk_norm,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=shape.has_qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        # Losses are sums and Megatron divides by the global token count at the end. Its other mode divides
        # each micro-batch by its own count: a token in a short micro-batch would weigh more.
        calculate_per_token_loss=True,
        use_cpu_initialization=not torch.cuda.is_available(),
        # The fused kernels of these exist for CUDA only.
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )
