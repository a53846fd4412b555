"""GGUF files, written from a Hugging Face folder as llama.cpp's converter does."""

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers.pre_tokenizers import ByteLevel

from asyncrl.model.gguf import LAYER_TENSORS, TENSORS
from asyncrl.model.shape import ModelShape

TOKENS = [*sorted(ByteLevel.alphabet()), "Ġa", "Ġab", "<|end|>", "<|user|>"]
"""260 tokens; the last two are control tokens."""
MERGES = ["Ġ a", "Ġa b"]
TEMPLATE = "{% for message in messages %}<|user|>{{ message['content'] }}{% endfor %}"


def permuted(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """As llama.cpp stores the rows of q and k of Llama."""
    half = weight.shape[0] // num_heads // 2
    return weight.reshape(num_heads, 2, half, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    file: Path,
    folder: Path,
    shape: ModelShape,
    *,
    pre: str = "gpt-2",
    quantised: str = "",
    kind: str = "",
    **more: object,
) -> Path:
    """The model in `folder`; the tensor whose GGUF name ends in `quantised` as Q8_0."""
    kind = kind or {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}[shape.architecture]
    writer = gguf.GGUFWriter(file, kind)
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(shape.max_positions)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.ffn_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * (len(TOKENS) - 2) + [3, 3])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(TOKENS.index("<|end|>"))
    writer.add_chat_template(TEMPLATE)
    for key, value in more.items():
        writer.add_float32(key.replace("__", "."), float(str(value)))
    for name, weight in load_file(folder / "model.safetensors").items():
        stored, values = _gguf_name(name), np.asarray(weight, dtype=np.float32)
        if kind == "llama" and "q_proj" in name:
            values = permuted(values, shape.num_heads)
        if kind == "llama" and "k_proj" in name:
            values = permuted(values, shape.num_kv_heads)
        if quantised and stored.endswith(quantised):
            q8 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(stored, gguf.quants.quantize(values, q8), raw_dtype=q8)
        else:
            writer.add_tensor(stored, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _gguf_name(name: str) -> str:
    for ours, theirs in TENSORS.items():
        if name == theirs:
            return ours
    _, _, layer, rest = name.split(".", 3)
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{next(ours for ours, theirs in LAYER_TENSORS.items() if theirs == part)}.{kind}"
