"""config.json of published models, the keys that decide their shape: no weights, no tokenizer."""

import json
from pathlib import Path
from typing import Any


def _qwen3(layers: int, hidden: int, heads: int, ffn: int, *, is_tied: bool = False) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": ffn,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": is_tied,
    }


def _llama31(layers: int, hidden: int, heads: int, ffn: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "intermediate_size": ffn,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "tie_word_embeddings": False,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": _qwen3(28, 1024, 16, 3072, is_tied=True),
    "Qwen3-1.7B": _qwen3(28, 2048, 16, 6144, is_tied=True),
    "Qwen3-8B": _qwen3(36, 4096, 32, 12288),
    "Qwen3-32B": _qwen3(64, 5120, 64, 25600),
    "Qwen3-30B-A3B": {
        **_qwen3(48, 2048, 32, 6144),
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "Llama-3.1-8B": _llama31(32, 4096, 32, 14336),
    "Llama-3.1-70B": _llama31(80, 8192, 64, 28672),
}


def write_config(name: str, folder: Path) -> Path:
    """A model folder FOLDER/NAME with a config.json alone."""
    made = folder / name
    made.mkdir(parents=True)
    (made / "config.json").write_text(json.dumps(CONFIGS[name]))
    return made
