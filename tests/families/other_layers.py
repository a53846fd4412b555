"""Dense families with other norms, sliding layers or rotary positions than a Llama's."""

from families.tiny import LINEAR, YARN, Chat, Tiny, published

SLIDING = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA = SLIDING | {"head_dim": 16, "query_pre_attn_scalar": 9}
GEMMAS = {"hidden_activation": "gelu_pytorch_tanh", "cache_implementation": "hybrid"}
"""Settings of all published ones."""
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
    published={
        "google/gemma-2-9b": (
            published(
                "Gemma2ForCausalLM",
                "gemma2",
                (42, 3584, 16, 8, 14336, 256000, 8192),
                **GEMMAS,
                hidden_act="gelu_pytorch_tanh",
                head_dim=256,
                query_pre_attn_scalar=256,
                sliding_window=4096,
                sliding_window_size=4096,
                attn_logit_softcapping=50.0,
                final_logit_softcapping=30.0,
                rope_theta=10000.0,
            ),
            9_241_705_984,
        ),
    },
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
    published={
        "google/gemma-3-1b-pt": (
            published(
                "Gemma3ForCausalLM",
                "gemma3_text",
                (26, 1152, 4, 1, 6912, 262144, 32768),
                **GEMMAS,
                head_dim=256,
                query_pre_attn_scalar=256,
                sliding_window=512,
                sliding_window_pattern=6,
                rope_theta=1000000,
                rope_local_base_freq=10000,
                rope_scaling=None,
                attn_logit_softcapping=None,
                final_logit_softcapping=None,
            ),
            999_885_952,
        ),
    },
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
    published={
        "allenai/OLMo-2-1124-7B": (
            published(
                "Olmo2ForCausalLM",
                "olmo2",
                (32, 4096, 32, 32, 11008, 100352, 4096),
                rope_theta=500000,
                rope_scaling=None,
                attention_bias=False,
                tie_word_embeddings=False,
            ),
            # By hand: 2 x 100352 x 4096, 32 x (4 x 4096^2 + 3 x 4096 x 11008 + 4 x 4096), 4096.
            7_298_617_344,
        ),
    },
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
    published={
        "allenai/Olmo-3-1025-7B": (
            published(
                "Olmo3ForCausalLM",
                "olmo3",
                (32, 4096, 32, 32, 11008, 100278, 65536),
                layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 8,
                sliding_window=4096,
                rope_theta=500000,
                rope_scaling={
                    "rope_type": "yarn",
                    "factor": 8.0,
                    "original_max_position_embeddings": 8192,
                    "attention_factor": 1.2079441541679836,
                    "beta_fast": 32,
                    "beta_slow": 1,
                },
                attention_bias=False,
                tie_word_embeddings=False,
            ),
            7_298_617_344 - 2 * (100352 - 100278) * 4096,
        ),
    },
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
    published={
        "zai-org/GLM-4-9B-0414": (
            published(
                "Glm4ForCausalLM",
                "glm4",
                (40, 4096, 32, 2, 13696, 151552, 32768),
                head_dim=128,
                partial_rotary_factor=0.5,
                attention_bias=True,
                rope_theta=10000.0,
                tie_word_embeddings=False,
            ),
            9_400_279_040,
        ),
    },
)
