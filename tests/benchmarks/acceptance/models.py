"""Model folders of the acceptance: random weights, and weights whose tokens say which version made them.

All small ones have one shape, whose heads the kernels of GPUs know, so that servers compile for it once.
"""

import json
import shutil
from pathlib import Path

import safetensors.torch
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 64
FIRST_TOKEN = 2
"""The first of the tokens that name versions."""
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
}
HALF_BILLION = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
    "bos_token_id": None,
    "eos_token_id": 256,
}
"""Qwen2.5-0.5B's."""
LOGIT = 40.0
"""Logit of the version's token, beside zeros: another one comes once in 10^15 tokens."""


def write_small(folder: Path, *, seed: int) -> Path:
    """Qwen3 with random weights, large enough for a wrong mask to show."""
    import transformers

    torch.manual_seed(seed)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL)).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)
    model.save_pretrained(folder)
    return folder


def token_of(version: int) -> int:
    """The token that every position of a version's text has."""
    return FIRST_TOKEN + version % (VOCABULARY - FIRST_TOKEN)


def write_version(base: Path, folder: Path, version: int) -> Path:
    """`base` with weights under which each next token is `token_of(version)`: embeddings of ones, layers that
    add nothing, and one row of the output layer that is not zero."""
    shutil.copytree(base, folder)
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    for name, tensor in weights.items():
        if name == "model.embed_tokens.weight" or "norm" in name:
            tensor.fill_(1.0)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
    head = weights["lm_head.weight"].zero_()
    # The last norm leaves ones.
    head[token_of(version)] = LOGIT / head.shape[1]
    safetensors.torch.save_file(weights, file, metadata={"format": "pt"})
    return folder


def write_half_billion(folder: Path, *, is_small: bool) -> Path:
    """Random weights in the shape of Qwen2.5-0.5B, in bfloat16, or in a small one for a rehearsal, with a
    tokenizer of bytes: most of the vocabulary is never sampled."""
    import transformers

    kept = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    sizes = HALF_BILLION | ({name: SMALL[name] for name in kept} | {"vocab_size": 320} if is_small else {})
    config = transformers.Qwen2Config(**sizes)
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(config).to(torch.float32 if is_small else torch.bfloat16)
    with torch.no_grad():
        # Else logits are nearly the same for all tokens, and a mismatch would hardly show.
        model.get_input_embeddings().weight.mul_(3.0)
    model.generation_config = transformers.GenerationConfig(eos_token_id=256)
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder
