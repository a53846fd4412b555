"""Tiny models of all families: a dense Llama's first, then others."""

from families.tiny import CHATML, LINEAR, LLAMA3_SCALING, YARN, Chat, Tiny

LLAMA = Tiny(
    config="Llama",
    settings={"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    variants={
        "llama3": {"rope_parameters": LLAMA3_SCALING},
        "llama3, published": {
            "rope_parameters": LLAMA3_SCALING
            | {"rope_theta": 500000.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            | {"original_max_position_embeddings": 8192},
            "max_position_embeddings": 16384,
        },
    },
    chat=Chat(
        template="llama3",
        end="<|eot_id|>",
        stops=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        bos_token="<|begin_of_text|>",
    ),
)
MISTRAL = Tiny(
    config="Mistral",
    settings={"sliding_window": 64},
    served={"sliding_window": None},
    chat=Chat(template="mistral", end="</s>", stops=("</s>",), bos_token="<s>", eos_token="</s>"),
)
QWEN2 = Tiny(
    config="Qwen2",
    variants={
        "tied, one head per group": {"tie_word_embeddings": True, "num_key_value_heads": 4},
        "linear": {"rope_parameters": LINEAR},
    },
    chat=CHATML,
)
QWEN3 = Tiny(
    config="Qwen3",
    settings={"head_dim": 16},
    variants={
        "tied": {"tie_word_embeddings": True},
        "linear": {"rope_parameters": LINEAR},
        "yarn": {"rope_parameters": YARN},
        "yarn with mscale": {
            "rope_parameters": YARN
            | {"beta_fast": 8.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5}
        },
    },
    chat=Chat(template="qwen3", end="<|im_end|>", stops=CHATML.stops),
)
PHI3 = Tiny(
    config="Phi3",
    variants={
        "tied": {"tie_word_embeddings": True, "num_key_value_heads": 1},
        # Three quarters of heads of 32 are rotated.
        "longrope": {
            "hidden_size": 128,
            "partial_rotary_factor": 0.75,
            "tie_word_embeddings": True,
            "max_position_embeddings": 512,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 300.0,
                "short_factor": [1.0 + i / 4 for i in range(12)],
                "long_factor": [2.0 + i for i in range(12)],
            },
        },
    },
    chat=Chat(template="phi3", end="<|end|>", stops=("<|endoftext|>", "<|end|>"), eos_token="<|endoftext|>"),
)
GRANITE = Tiny(
    config="Granite",
    settings={
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.2,
        "logits_scaling": 0.5,
    },
    variants={"tied": {"tie_word_embeddings": True}},
    chat=Chat(
        template="granite",
        end="<|end_of_text|>",
        stops=("<|end_of_text|>",),
        bos_token="<|end_of_text|>",
        eos_token="<|end_of_text|>",
    ),
)
SMOLLM3 = Tiny(
    config="SmolLM3",
    # Odd layers are not rotated.
    settings={"no_rope_layer_interval": 2, "rope_parameters": {"rope_theta": 300.0}},
    variants={"yarn": {"no_rope_layers": [0, 1], "rope_parameters": YARN}},
    chat=Chat(template="smollm3", end="<|im_end|>", stops=("<|im_end|>",)),
)

SLIDING = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA = SLIDING | {"head_dim": 16, "query_pre_attn_scalar": 9}
GEMMA_CHAT = Chat(
    template="gemma",
    end="<end_of_turn>",
    stops=("<eos>", "<end_of_turn>"),
    bos_token="<bos>",
    eos_token="<eos>",
)

GEMMA2 = Tiny(
    config="Gemma2",
    settings=GEMMA | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0},
    variants={"window never reached": {"sliding_window": 64}},
    # SGLang takes the kinds of layers from their numbers.
    served={"layer_types": None},
    chat=GEMMA_CHAT,
)
GEMMA3 = Tiny(
    config="Gemma3Text",
    settings=GEMMA,
    variants={
        "full layers scaled": {
            "rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_theta": 50.0}}
        },
    },
    chat=GEMMA_CHAT,
)
OLMO2 = Tiny(
    config="Olmo2",
    variants={"tied": {"tie_word_embeddings": True, "num_key_value_heads": 4}},
    chat=Chat(
        template="olmo2",
        end="<|endoftext|>",
        stops=("<|endoftext|>",),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
    ),
)
OLMO3 = Tiny(
    config="Olmo3",
    settings=SLIDING,
    variants={
        "yarn": {"rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_theta": 300.0}}},
    },
    chat=Chat(
        template="olmo3",
        end="<|im_end|>",
        last_end="<|endoftext|>",
        stops=("<|im_end|>", "<|endoftext|>"),
        eos_token="<|endoftext|>",
    ),
)
GLM4 = Tiny(
    config="Glm4",
    settings={"head_dim": 16, "rope_parameters": {"rope_theta": 300.0, "partial_rotary_factor": 0.5}},
    variants={"without biases": {"attention_bias": False, "num_key_value_heads": 1}},
    chat=Chat(
        template="glm4",
        end="<|user|>",
        stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
        eos_token="<|endoftext|>",
    ),
)

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
UNTIED = {"tie_word_embeddings": False}


QWEN3_MOE = Tiny(
    config="Qwen3Moe",
    settings=EXPERTS | UNTIED | {"head_dim": 16, "norm_topk_prob": True},
    variants={
        "not normalised": {"norm_topk_prob": False},
        "one per token": {"norm_topk_prob": False, "num_experts_per_tok": 1},
    },
    chat=Chat(template="qwen3", end="<|im_end|>", stops=CHATML.stops),
)
QWEN2_MOE = Tiny(
    config="Qwen2Moe",
    settings=EXPERTS | UNTIED | {"shared_expert_intermediate_size": 64},
    chat=CHATML,
)
MIXTRAL = Tiny(
    config="Mixtral",
    settings=UNTIED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    chat=Chat(template="mistral", end="</s>", stops=("</s>",), bos_token="<s>", eos_token="</s>"),
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
)
