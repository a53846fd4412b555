"""Mixtures of experts whose attention is not a Llama's: sinks, linear attention, latent attention."""

from families.experts import EXPERTS, UNTIED
from families.other_layers import SLIDING
from families.tiny import CHATML, YARN, Chat, Tiny, published


def _gpt_oss(layers: int, experts: int) -> dict[str, object]:
    return dict(
        published(
            "GptOssForCausalLM",
            "gpt_oss",
            (layers, 2880, 64, 8, 2880, 201088, 131072),
            attention_bias=True,
            experts_per_token=4,
            head_dim=64,
            initial_context_length=4096,
            layer_types=["sliding_attention", "full_attention"] * (layers // 2),
            num_experts_per_tok=4,
            num_local_experts=experts,
            rope_scaling={
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "truncate": False,
            },
            rope_theta=150000,
            router_aux_loss_coef=0.9,
            sliding_window=128,
            swiglu_limit=7.0,
            **UNTIED,
        )
    )


GPT_OSS = Tiny(
    config="GptOss",
    settings=UNTIED
    | SLIDING
    | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
    # Small, so that it cuts.
    | {"swiglu_limit": 0.5, "rope_parameters": YARN | {"truncate": False}},
    variants={"window never reached": {"sliding_window": 64}},
    served={"swiglu_limit": 1.0, "sliding_window": 9, "context": 128},
    lora={"targets": ["q_proj", "k_proj", "v_proj", "o_proj"]},
    chat=Chat(
        template="gpt_oss",
        end="<|return|>",
        in_history="<|end|>",
        stops=("<|return|>", "<|endoftext|>", "<|call|>"),
        others=("<|start|>", "<|message|>", "<|channel|>"),
        eos_token="<|return|>",
    ),
    published={
        "unsloth/gpt-oss-20b-BF16": (_gpt_oss(24, 32), 20_914_757_184),
        "unsloth/gpt-oss-120b-BF16": (_gpt_oss(36, 128), 116_829_156_672),
    },
)
QWEN3_NEXT = Tiny(
    config="Qwen3Next",
    settings=EXPERTS
    | UNTIED
    | {"shared_expert_intermediate_size": 64, "head_dim": 16}
    | {"layer_types": ["linear_attention", "full_attention"]}
    | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    | {"linear_key_head_dim": 8, "linear_value_head_dim": 12}
    # The outputs of tiny linear attention are so small that their norm would multiply rounding.
    | {"rms_norm_eps": 1e-2},
    variants={"epsilon as published": {"rms_norm_eps": 1e-6}},
    served={"linear_key_head_dim": 24, "linear_value_head_dim": 32},
    # At the published epsilon float32 of transformers itself is 3e-5 from its float64.
    limit=5e-5,
    chat=Chat(template="qwen3", end="<|im_end|>", stops=CHATML.stops),
    published={
        "Qwen/Qwen3-Next-80B-A3B-Instruct": (
            published(
                "Qwen3NextForCausalLM",
                "qwen3_next",
                (48, 2048, 16, 2, 5120, 151936, 262144),
                attention_bias=False,
                decoder_sparse_step=1,
                full_attention_interval=4,
                head_dim=256,
                hidden_act="silu",
                linear_conv_kernel_dim=4,
                linear_key_head_dim=128,
                linear_num_key_heads=16,
                linear_num_value_heads=32,
                linear_value_head_dim=128,
                mlp_only_layers=[],
                moe_intermediate_size=512,
                norm_topk_prob=True,
                num_experts=512,
                num_experts_per_tok=10,
                partial_rotary_factor=0.25,
                rope_scaling=None,
                rope_theta=10000000,
                router_aux_loss_coef=0.001,
                shared_expert_intermediate_size=512,
                **UNTIED,
            ),
            79_674_391_296,
        ),
    },
    lacks={"CP 2": "no: states of linear attention"},
)
LATENT = {"num_key_value_heads": 4, "first_k_dense_replace": 1}
LATENT |= {"kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16}
LATENT |= {"n_routed_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 32}
WHOLE_QUERIES = {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2}
MSCALES = YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}
SERVED = {"kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 32}
DEEPSEEK_V3 = Tiny(
    config="DeepseekV3",
    settings=UNTIED
    | LATENT
    | {"q_lora_rank": 24, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.8}
    | {"rope_parameters": MSCALES},
    variants={
        "plain rotation": {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
        "whole queries": WHOLE_QUERIES
        | {"rope_parameters": MSCALES | {"mscale": 0.7}, "v_head_dim": 22, "rms_norm_eps": 1e-3},
    },
    served=SERVED | {"context": 128},
    trainer={"router": {"bias_update_rate": 0.1}},
    chat=Chat(
        template="deepseek_v3",
        end="<｜end▁of▁sentence｜>",
        stops=("<｜end▁of▁sentence｜>",),
        others=("<｜User｜>", "<｜Assistant｜>"),
        bos_token="<｜begin▁of▁sentence｜>",
        eos_token="<｜end▁of▁sentence｜>",
    ),
    published={
        # R1 too; without their quantization_config.
        "deepseek-ai/DeepSeek-V3": (
            published(
                "DeepseekV3ForCausalLM",
                "deepseek_v3",
                (61, 7168, 128, 128, 18432, 129280, 163840),
                q_lora_rank=1536,
                kv_lora_rank=512,
                qk_nope_head_dim=128,
                qk_rope_head_dim=64,
                v_head_dim=128,
                moe_intermediate_size=2048,
                n_routed_experts=256,
                n_shared_experts=1,
                num_experts_per_tok=8,
                n_group=8,
                topk_group=4,
                first_k_dense_replace=3,
                moe_layer_freq=1,
                norm_topk_prob=True,
                routed_scaling_factor=2.5,
                scoring_func="sigmoid",
                topk_method="noaux_tc",
                rope_theta=10000,
                rope_scaling={
                    "type": "yarn",
                    "factor": 40,
                    "original_max_position_embeddings": 4096,
                    "beta_fast": 32,
                    "beta_slow": 1,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                },
                attention_bias=False,
                # The layer behind the last, which is not trained.
                num_nextn_predict_layers=1,
                ep_size=1,
                **UNTIED,
            ),
            671_026_419_200,
        ),
    },
)
DEEPSEEK_V2 = Tiny(
    config="DeepseekV2",
    settings=UNTIED
    | LATENT
    | WHOLE_QUERIES
    | {"norm_topk_prob": False, "routed_scaling_factor": 1.3, "rope_parameters": MSCALES},
    served=SERVED | {"context": 128},
    chat=Chat(
        template="deepseek_v2",
        end="<｜end▁of▁sentence｜>",
        stops=("<｜end▁of▁sentence｜>",),
        bos_token="<｜begin▁of▁sentence｜>",
        eos_token="<｜end▁of▁sentence｜>",
    ),
    published={
        "deepseek-ai/DeepSeek-V2-Lite": (
            published(
                "DeepseekV2ForCausalLM",
                "deepseek_v2",
                (27, 2048, 16, 16, 10944, 102400, 163840),
                q_lora_rank=None,
                kv_lora_rank=512,
                qk_nope_head_dim=128,
                qk_rope_head_dim=64,
                v_head_dim=128,
                moe_intermediate_size=1408,
                n_routed_experts=64,
                n_shared_experts=2,
                num_experts_per_tok=6,
                n_group=1,
                topk_group=1,
                first_k_dense_replace=1,
                moe_layer_freq=1,
                norm_topk_prob=False,
                routed_scaling_factor=1.0,
                scoring_func="softmax",
                topk_method="greedy",
                aux_loss_alpha=0.001,
                seq_aux=True,
                rope_theta=10000,
                rope_scaling={
                    "type": "yarn",
                    "factor": 40,
                    "original_max_position_embeddings": 4096,
                    "beta_fast": 32,
                    "beta_slow": 1,
                    "mscale": 0.707,
                    "mscale_all_dim": 0.707,
                },
                attention_bias=False,
                **UNTIED,
            ),
            15_706_484_224,
        ),
    },
)
