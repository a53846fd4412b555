"""A GGUF file as a Hugging Face folder: config.json, float32 safetensors and the tokenizer. No torch.

Llama and Qwen2. Quantized tensors are dequantized, so training starts from exactly what llama.cpp computes
with. Layout of the format: github.com/ggml-org/ggml/blob/master/docs/gguf.md.

    blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight, rows un-permuted for Llama
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file

from asyncrl.errors import InputError
from asyncrl.model.gguf_tokenizer import write_tokenizer

Progress = Callable[[int, int], None]
"""Called with the number of tensors that are converted, and of all."""
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
"""general.architecture -> what transformers calls it."""
TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SHARD_BYTES = 2 * 2**30
"""Weights in one safetensors file; all of them are in memory while it is written."""
SAMPLE_BYTES = 2**20
FORMAT = 1
"""Raised when a file converts to something else, so that old folders are not used again."""


def is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf" and path.is_file()


def convert_gguf(file: Path, folder: Path, progress: Progress = lambda done, total: None) -> None:
    """Writes `file` as the Hugging Face folder `folder`, which is there in full or not at all.

    Raises InputError for a file that is damaged or that cannot be converted.
    """
    reader = _open(file)
    try:
        config, tokens = _config(file, reader), _metadata(reader)
        making = folder.with_name(f"{folder.name}.{os.getpid()}.making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        try:
            _write_weights(reader, config, making, progress)
            write_tokenizer(file, tokens, making)
            (making / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            if not folder.exists():
                making.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    except (KeyError, ValueError) as error:
        raise InputError(f"{file} cannot be converted: {error}") from error


def gguf_key(file: Path) -> str:
    """Fingerprint of a GGUF file, taken in milliseconds: its size and its first and last MiB."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{FORMAT} {size}".encode())
    with file.open("rb") as stream:
        digest.update(stream.read(SAMPLE_BYTES))
        stream.seek(max(0, size - SAMPLE_BYTES))
        digest.update(stream.read())
    return digest.hexdigest()[:16]


def _open(file: Path) -> GGUFReader:
    try:
        return GGUFReader(file)
    except Exception as error:  # the library raises whatever numpy does for a file that was cut
        raise InputError(f"{file} cannot be read as GGUF: {error}. Fetch it again.") from error


def _metadata(reader: GGUFReader) -> dict[str, Any]:
    return {name: field.contents() for name, field in reader.fields.items()}


def _config(file: Path, reader: GGUFReader) -> dict[str, Any]:
    """config.json. Raises InputError for an architecture or rotary positions that cannot be converted."""
    names = {name for name in reader.fields if not name.startswith("tokenizer.")}
    known = {name: reader.fields[name].contents() for name in names}
    kind = known.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise InputError(
            f"{file} holds a model of architecture {kind!r}; only {', '.join(ARCHITECTURES)} can be "
            f"converted. Use the original model folder, or its hub id."
        )
    scaled = [name for name in known if name.startswith(f"{kind}.rope.scaling")]
    tensors = {tensor.name for tensor in reader.tensors}
    if scaled or "rope_freqs.weight" in tensors:
        raise InputError(
            f"{file} scales its rotary positions, which cannot be converted. Use the original model folder, "
            f"or its hub id."
        )
    tokens = known_tokens(reader)
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "num_hidden_layers": known[f"{kind}.block_count"],
        "hidden_size": known[f"{kind}.embedding_length"],
        "intermediate_size": known[f"{kind}.feed_forward_length"],
        "num_attention_heads": known[f"{kind}.attention.head_count"],
        "num_key_value_heads": known.get(
            f"{kind}.attention.head_count_kv", known[f"{kind}.attention.head_count"]
        ),
        **({"head_dim": known[size]} if (size := f"{kind}.attention.key_length") in known else {}),
        "max_position_embeddings": known[f"{kind}.context_length"],
        "rms_norm_eps": _shortest(known[f"{kind}.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(known.get(f"{kind}.rope.freq_base", 10000.0)),
        "vocab_size": len(reader.fields["tokenizer.ggml.tokens"].data),
        "tie_word_embeddings": "output.weight" not in tensors,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        **tokens,
    }


def _shortest(value: float) -> float:
    """The number that was meant where a float32 of it was stored: 1e-06, not 9.999999974752427e-07."""
    return float(str(np.float32(value)))


def known_tokens(reader: GGUFReader) -> dict[str, int]:
    """bos_token_id and eos_token_id, as far as the file names them."""
    return {
        f"{name}_token_id": reader.fields[key].contents()
        for name in ("bos", "eos")
        if (key := f"tokenizer.ggml.{name}_token_id") in reader.fields
    }


def _write_weights(reader: GGUFReader, config: dict[str, Any], folder: Path, progress: Progress) -> None:
    """model.safetensors, or shards of about SHARD_BYTES with their index, under the names of transformers."""
    shards: list[list[str]] = []
    shard: dict[str, NDArray[np.float32]] = {}

    def write_shard() -> None:
        save_file(shard, folder / f"{len(shards)}.part", metadata={"format": "pt"})
        shards.append(list(shard))
        shard.clear()

    for done, (name, weight) in enumerate(_weights(reader, config)):
        if shard and sum(one.nbytes for one in shard.values()) + weight.nbytes > SHARD_BYTES:
            write_shard()
        shard[name] = weight
        progress(done + 1, len(reader.tensors))
    write_shard()
    places: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        file = file if len(shards) > 1 else "model.safetensors"
        (folder / f"{number}.part").rename(folder / file)
        places |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _weights(reader: GGUFReader, config: dict[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """(Hugging Face name, weight) of each tensor. Raises ValueError for one that is unknown."""
    is_llama = config["model_type"] == "llama"
    for tensor in reader.tensors:
        name = _hugging_face_name(tensor.name)
        weight = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if is_llama and ".q_proj." in name:
            weight = unpermuted(weight, config["num_attention_heads"])
        elif is_llama and ".k_proj." in name:
            weight = unpermuted(weight, config["num_key_value_heads"])
        yield name, weight


def _hugging_face_name(name: str) -> str:
    if name in TENSORS:
        return TENSORS[name]
    block, number, part, kind = (*name.split("."), "", "", "")[:4]
    if block != "blk" or part not in LAYER_TENSORS or name.count(".") != 3:
        raise ValueError(f"tensor {name} has no place in the model")
    return f"model.layers.{number}.{LAYER_TENSORS[part]}.{kind}"


def unpermuted(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows in the order of transformers: llama.cpp rotates pairs of neighbors, transformers pairs of halves.

    `weight` is (heads * head size, hidden) or a bias (heads * head size,).
    """
    half = weight.shape[0] // num_heads // 2
    paired = weight.reshape(num_heads, half, 2, *weight.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(weight.shape))
