"""A GGUF file as a Hugging Face folder: config.json, float32 safetensors and the tokenizer."""

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
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split
from tokenizers.processors import ByteLevel as ByteLevelProcessor
from tokenizers.processors import TemplateProcessing

from asyncrl.errors import InputError

# llama.cpp names a pre-tokenizer (`tokenizer.ggml.pre`) and has its pattern in code: the patterns of those
# that Llama, Qwen2 and SmolLM use stand here, as in the models' own tokenizer.json.
CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that no text makes by merging; the first are special."""
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LLAMA_PATTERN = QWEN_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _bytes(*, use_regex: bool) -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _by_pattern(pattern: str) -> PreTokenizer:
    return Sequence([Split(Regex(pattern), behavior="isolated"), _bytes(use_regex=False)])


PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {
    "gpt-2": lambda: _bytes(use_regex=True),
    # Digits part a text first, as in llama.cpp: the two spaces of "and  25" are one piece. What transformers
    # reads from a GGUF file lacks this step, and has them apart.
    "smollm": lambda: Sequence([Digits(individual_digits=True), _bytes(use_regex=True)]),
    "qwen2": lambda: _by_pattern(QWEN_PATTERN),
    "llama-bpe": lambda: _by_pattern(LLAMA_PATTERN),
}


def write_tokenizer(file: Path, metadata: dict[str, Any], folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json with the chat template, and generation_config.json.

    `metadata` is that of the GGUF file. Raises InputError for a tokenizer that is not known here.
    """
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise InputError(
            f"{file} has a tokenizer of kind {kind!r} with pre-tokenizer {pre!r}; byte-level BPE (gpt2) with "
            f"{', '.join(PRE_TOKENIZERS)} can be converted. Use the original model folder, or its hub id."
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    _build(metadata, tokens, pre).save(str(folder / "tokenizer.json"))
    special = {
        f"{name}_token": tokens[metadata[key]]
        for name, key in (
            ("bos", "tokenizer.ggml.bos_token_id"),
            ("eos", "tokenizer.ggml.eos_token_id"),
            ("pad", "tokenizer.ggml.padding_token_id"),
        )
        if key in metadata
    }
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **special,
    }
    if template := metadata.get("tokenizer.chat_template"):
        configuration["chat_template"] = template
    stops = {"eos_token_id": metadata["tokenizer.ggml.eos_token_id"]}
    for name, content in (("tokenizer_config", configuration), ("generation_config", stops)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _build(metadata: dict[str, Any], tokens: list[str], pre: str) -> Tokenizer:
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # Llama 3 takes a piece that is a token as it is, before any merge.
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.post_processor = ByteLevelProcessor(trim_offsets=False)
    for token, type_ in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True):
        if type_ in (CONTROL, USER_DEFINED):
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=type_ == CONTROL)])
    if metadata.get("tokenizer.ggml.add_bos_token", False):
        bos = metadata["tokenizer.ggml.bos_token_id"]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    return tokenizer


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
        config = _config(file, reader)
        tokens = {name: field.contents() for name, field in reader.fields.items()}
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
