"""Mixtures of experts."""

from families.tiny import CHATML, Chat, Tiny, published

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
UNTIED = {"tie_word_embeddings": False}


def _glm(layers: int, hidden: int, ffn: int, *, experts: int, width: int, num_dense: int, norms: int) -> int:
    """Parameters of GLM-4.5's tensors, by hand: cards count the layer behind the last, too."""
    attention = 2 * 96 * 128 * hidden + 96 * 128 + 2 * 8 * 128 * (hidden + 1) + norms
    sparse = (experts + 1) * 3 * hidden * width + experts * (hidden + 1)
    dense = num_dense * 3 * hidden * ffn
    return (
        2 * 151552 * hidden
        + hidden
        + layers * (attention + 2 * hidden)
        + dense
        + (layers - num_dense) * sparse
    )


QWEN3_MOE = Tiny(
    config="Qwen3Moe",
    settings=EXPERTS | UNTIED | {"head_dim": 16, "norm_topk_prob": True},
    variants={
        "not normalised": {"norm_topk_prob": False},
        "one per token": {"norm_topk_prob": False, "num_experts_per_tok": 1},
    },
    chat=Chat(template="qwen3", end="<|im_end|>", stops=CHATML.stops),
    published={
        "Qwen/Qwen3-30B-A3B": (
            published(
                "Qwen3MoeForCausalLM",
                "qwen3_moe",
                (48, 2048, 32, 4, 6144, 151936, 40960),
                head_dim=128,
                num_experts=128,
                num_experts_per_tok=8,
                moe_intermediate_size=768,
                norm_topk_prob=True,
                decoder_sparse_step=1,
                mlp_only_layers=[],
                rope_theta=1000000.0,
                rope_scaling=None,
                attention_bias=False,
                use_sliding_window=False,
                sliding_window=None,
                max_window_layers=48,
                output_router_logits=False,
                router_aux_loss_coef=0.001,
                **UNTIED,
            ),
            30_532_122_624,
        ),
    },
)
QWEN2_MOE = Tiny(
    config="Qwen2Moe",
    settings=EXPERTS | UNTIED | {"shared_expert_intermediate_size": 64},
    chat=CHATML,
    published={
        "Qwen/Qwen1.5-MoE-A2.7B": (
            published(
                "Qwen2MoeForCausalLM",
                "qwen2_moe",
                (24, 2048, 16, 16, 5632, 151936, 8192),
                num_experts=60,
                num_experts_per_tok=4,
                moe_intermediate_size=1408,
                shared_expert_intermediate_size=5632,
                norm_topk_prob=False,
                decoder_sparse_step=1,
                rope_theta=1000000.0,
                use_sliding_window=False,
                sliding_window=32768,
                max_window_layers=21,
                output_router_logits=False,
                router_aux_loss_coef=0.001,
                **UNTIED,
            ),
            14_315_784_192,
        ),
    },
)
MIXTRAL = Tiny(
    config="Mixtral",
    settings=UNTIED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    chat=Chat(template="mistral", end="</s>", stops=("</s>",), bos_token="<s>", eos_token="</s>"),
    published={
        "mistralai/Mixtral-8x7B-v0.1": (
            published(
                "MixtralForCausalLM",
                "mixtral",
                (32, 4096, 32, 8, 14336, 32000, 32768),
                num_local_experts=8,
                num_experts_per_tok=2,
                rope_theta=1000000.0,
                sliding_window=None,
                output_router_logits=False,
                router_aux_loss_coef=0.02,
                **UNTIED,
            ),
            46_702_792_704,
        ),
    },
)
GLM4_MOE = Tiny(
    config="Glm4Moe",
    settings=UNTIED
    | {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    | {"first_k_dense_replace": 1, "routed_scaling_factor": 1.8, "attention_bias": True},
    variants={
        "norms of q and k": {"use_qk_norm": True, "attention_bias": False, "n_shared_experts": 2},
    },
    trainer={"router": {"bias_update_rate": 0.1}},
    chat=Chat(
        template="glm4_5",
        end="<|user|>",
        stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
        eos_token="<|endoftext|>",
    ),
    published={
        "zai-org/GLM-4.5": (
            published(
                "Glm4MoeForCausalLM",
                "glm4_moe",
                (92, 5120, 96, 8, 12288, 151552, 131072),
                head_dim=128,
                partial_rotary_factor=0.5,
                attention_bias=True,
                use_qk_norm=True,
                n_routed_experts=160,
                n_shared_experts=1,
                num_experts_per_tok=8,
                moe_intermediate_size=1536,
                first_k_dense_replace=3,
                routed_scaling_factor=2.5,
                n_group=1,
                topk_group=1,
                norm_topk_prob=True,
                # The layer behind the last, which is not trained.
                num_nextn_predict_layers=1,
                rope_theta=1000000,
                rope_scaling=None,
                **UNTIED,
            ),
            _glm(92, 5120, 12288, experts=160, width=1536, num_dense=3, norms=2 * 128),
        ),
        "zai-org/GLM-4.5-Air": (
            published(
                "Glm4MoeForCausalLM",
                "glm4_moe",
                (46, 4096, 96, 8, 10944, 151552, 131072),
                head_dim=128,
                partial_rotary_factor=0.5,
                attention_bias=True,
                use_qk_norm=False,
                n_routed_experts=128,
                n_shared_experts=1,
                num_experts_per_tok=8,
                moe_intermediate_size=1408,
                first_k_dense_replace=1,
                routed_scaling_factor=1.0,
                n_group=1,
                topk_group=1,
                norm_topk_prob=True,
                num_nextn_predict_layers=1,
                rope_theta=1000000,
                rope_scaling=None,
                **UNTIED,
            ),
            _glm(46, 4096, 10944, experts=128, width=1408, num_dense=1, norms=0),
        ),
    },
)
