"""A real, tiny, untrained model folder: Qwen3, Qwen3-MoE or another, with the character tokenizer."""

from pathlib import Path
from typing import Any

from fakes.model_folder import CHARACTERS, write_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
"""About 0.1 million parameters."""


def write_base_model(
    folder: Path,
    *,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    num_experts: int | None = None,
    family: str | None = None,
    **settings: Any,
) -> Path:
    """Random weights; `settings` of config.json differ from SIZES. As in many models, the row of the pad is
    zero. Another `tokenizer` has its ids 0 to 2 for the same special tokens."""
    import torch
    import transformers

    family = family or ("Qwen3" if num_experts is None else "Qwen3Moe")
    experts = {"num_experts": num_experts, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(CHARACTERS) + 3 if tokenizer is None else tokenizer.get_vocab_size(),
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        **(SIZES | ({} if num_experts is None else experts | {"norm_topk_prob": True}) | settings),
    )
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.generation_config = transformers.GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    model.save_pretrained(folder)
    if tokenizer is None:
        return write_character_tokenizer(folder)
    tokenizer.save(str(write_tokenizer(folder) / "tokenizer.json"))
    return folder


def write_character_tokenizer(folder: Path) -> Path:
    """That of `model_folder`, whose pad is a special token."""
    file = write_tokenizer(folder) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.model = WordLevel(tokenizer.get_vocab(), unk_token="<bos>")
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(file))
    return folder
