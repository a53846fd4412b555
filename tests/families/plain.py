"""Dense families whose layers are a Llama's, but for a few numbers."""

from families.tiny import CHATML, LINEAR, LLAMA3_SCALING, YARN, Chat, Tiny, published

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
    published={
        "meta-llama/Llama-3.1-8B": (
            published(
                "LlamaForCausalLM",
                "llama",
                (32, 4096, 32, 8, 14336, 128256, 131072),
                rope_theta=500000.0,
                rope_scaling={
                    "factor": 8.0,
                    "high_freq_factor": 4.0,
                    "low_freq_factor": 1.0,
                    "original_max_position_embeddings": 8192,
                    "rope_type": "llama3",
                },
                attention_bias=False,
                mlp_bias=False,
                pretraining_tp=1,
                tie_word_embeddings=False,
            ),
            8_030_261_248,
        ),
    },
)
MISTRAL = Tiny(
    config="Mistral",
    settings={"sliding_window": 64},
    served={"sliding_window": None},
    chat=Chat(template="mistral", end="</s>", stops=("</s>",), bos_token="<s>", eos_token="</s>"),
    published={
        "mistralai/Mistral-7B-v0.3": (
            published(
                "MistralForCausalLM",
                "mistral",
                (32, 4096, 32, 8, 14336, 32768, 32768),
                rope_theta=1000000.0,
                sliding_window=None,
                tie_word_embeddings=False,
            ),
            7_248_023_552,
        ),
        "mistralai/Mistral-Nemo-Base-2407": (
            published(
                "MistralForCausalLM",
                "mistral",
                (40, 5120, 32, 8, 14336, 131072, 128000),
                head_dim=128,
                rope_theta=1000000.0,
                sliding_window=None,
                tie_word_embeddings=False,
            ),
            12_247_782_400,
        ),
    },
)
QWEN2 = Tiny(
    config="Qwen2",
    variants={
        "tied, one head per group": {"tie_word_embeddings": True, "num_key_value_heads": 4},
        "linear": {"rope_parameters": LINEAR},
    },
    chat=CHATML,
    published={
        "Qwen/Qwen2.5-7B": (
            published(
                "Qwen2ForCausalLM",
                "qwen2",
                (28, 3584, 28, 4, 18944, 152064, 131072),
                rope_theta=1000000.0,
                use_sliding_window=False,
                sliding_window=131072,
                max_window_layers=28,
                use_mrope=False,
                tie_word_embeddings=False,
            ),
            7_615_616_512,
        ),
    },
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
    published={
        "Qwen/Qwen3-8B": (
            published(
                "Qwen3ForCausalLM",
                "qwen3",
                (36, 4096, 32, 8, 12288, 151936, 40960),
                head_dim=128,
                rope_theta=1000000,
                rope_scaling=None,
                attention_bias=False,
                use_sliding_window=False,
                sliding_window=None,
                max_window_layers=36,
                tie_word_embeddings=False,
            ),
            8_190_735_360,
        ),
    },
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
    published={
        "microsoft/Phi-3-mini-4k-instruct": (
            published(
                "Phi3ForCausalLM",
                "phi3",
                (32, 3072, 32, 32, 8192, 32064, 4096),
                rope_theta=10000.0,
                rope_scaling=None,
                sliding_window=2047,
                original_max_position_embeddings=4096,
                attention_bias=False,
                embd_pdrop=0.0,
                resid_pdrop=0.0,
                tie_word_embeddings=False,
            ),
            3_821_079_552,
        ),
        "microsoft/phi-4": (
            published(
                "Phi3ForCausalLM",
                "phi3",
                (40, 5120, 40, 10, 17920, 100352, 16384),
                rope_theta=250000,
                rope_scaling=None,
                sliding_window=None,
                original_max_position_embeddings=16384,
                tie_word_embeddings=False,
            ),
            14_659_507_200,
        ),
        "microsoft/Phi-4-mini-instruct": (
            published(
                "Phi3ForCausalLM",
                "phi3",
                (32, 3072, 24, 8, 8192, 200064, 131072),
                partial_rotary_factor=0.75,
                original_max_position_embeddings=4096,
                rope_scaling={"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.5] * 48},
                rope_theta=10000.0,
                sliding_window=262144,
                embd_pdrop=0.0,
                resid_pdrop=0.0,
                full_attn_mod=1,
                interpolate_factor=1,
                lm_head_bias=False,
                tie_word_embeddings=True,
            ),
            3_836_021_760,
        ),
    },
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
    published={
        "ibm-granite/granite-3.3-8b-instruct": (
            published(
                "GraniteForCausalLM",
                "granite",
                (40, 4096, 32, 8, 12800, 49159, 131072),
                embedding_multiplier=12.0,
                residual_multiplier=0.22,
                attention_multiplier=0.0078125,
                logits_scaling=16.0,
                rope_theta=10000000.0,
                rope_scaling=None,
                attention_bias=False,
                mlp_bias=False,
                tie_word_embeddings=True,
            ),
            8_170_864_640,
        ),
    },
)
SMOLLM3 = Tiny(
    config="SmolLM3",
    # Odd layers are not rotated.
    settings={"no_rope_layer_interval": 2, "rope_parameters": {"rope_theta": 300.0}},
    variants={"yarn": {"no_rope_layers": [0, 1], "rope_parameters": YARN}},
    chat=Chat(template="smollm3", end="<|im_end|>", stops=("<|im_end|>",)),
    published={
        "HuggingFaceTB/SmolLM3-3B": (
            published(
                "SmolLM3ForCausalLM",
                "smollm3",
                (36, 2048, 16, 4, 11008, 128256, 65536),
                no_rope_layers=[1, 1, 1, 0] * 9,
                no_rope_layer_interval=4,
                layer_types=["full_attention"] * 36,
                max_window_layers=28,
                sliding_window=None,
                use_sliding_window=False,
                rope_theta=5000000.0,
                rope_scaling=None,
                tie_word_embeddings=True,
            ),
            3_075_098_624,
        ),
    },
)
