"""A Hugging Face model folder, checked without torch: config.json and the headers of the safetensors files.

Owns which architectures the trainer knows and which tensors each of them has. Anything this trainer would
compute differently from transformers (sliding windows, biases it has no place for) is refused here or in
`settings`.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.settings import refuse_unknown_settings
from asyncrl.model.weights import read_weights
from asyncrl.recipe.file import PATH_RULE
from asyncrl.system.kinds import as_written, kind_of
from asyncrl.system.text_file import read_text

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Constants of Llama 3 RoPE scaling that megatron-core has built in; only `factor` is free."""
SAMPLE_BYTES = 65536
"""Sampled bytes of the weights at each end of a file: models of one shape and size differ there."""
SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size", "max_position_embeddings"),
    *("num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
)
WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer: grouped-query attention, RMSNorm, SwiGLU or experts, rotary positions."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_size: int
    vocab_size: int
    max_positions: int
    rope_theta: float
    rope_scaling_factor: float | None
    """Llama 3 scaling; None: plain rotary positions."""
    norm_epsilon: float
    is_tied: bool
    """The output layer is the embedding."""
    has_qkv_bias: bool
    has_qk_norm: bool
    num_experts: int | None = None
    """Feed-forward networks in each layer, of which a router chooses; None: one, without a router."""
    experts_per_token: int = 0
    expert_ffn_size: int = 0
    are_expert_weights_normalised: bool = True
    """The router's probabilities of the chosen experts are divided by their sum."""

    def num_parameters(self) -> int:
        return sum(_product(size) for _, size in expected_tensors(self))


def check_model_folder(path: Path) -> ModelShape:
    """The shape of the model in `path`. Raises InputError when the folder cannot be trained from."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(
            f"model.path is {path}, which is not a folder. Expected a Hugging Face model folder, a GGUF file "
            f"or a hub id (owner/name). {PATH_RULE}"
        )
    shape = _read_shape(path / "config.json")
    found = read_weights(path)
    for name, size in expected_tensors(shape):
        if name not in found:
            raise InputError(
                f"{path}: no tensor {name} in its safetensors files, which {shape.architecture} needs."
            )
        if found[name] != size:
            raise InputError(
                f"{path}: tensor {name} has shape {found[name]}, but config.json makes it {size}."
            )
    known = {name for name, _ in expected_tensors(shape)} | ({"lm_head.weight"} if shape.is_tied else set())
    if unknown := sorted(found.keys() - known):
        raise InputError(
            f"{path}: {len(unknown)} tensors that {shape.architecture} does not have here, first "
            f"{unknown[0]}. Training would lose them."
        )
    return shape


def read_shape(path: Path) -> ModelShape:
    """The shape that config.json of `path` says, weights unseen. Raises InputError."""
    return _read_shape(path / "config.json")


def other_files(path: Path) -> list[Path]:
    """Configuration and tokenizer: every plain file of the folder that holds no weights."""
    return [file for file in sorted(path.iterdir()) if file.is_file() and not _holds_weights(file)]


def model_digest(path: Path) -> str | None:
    """Fingerprint of a model folder, taken in milliseconds: SHA-256 of config.json and, for each safetensors
    file, its name, size, header and the first and last SAMPLE_BYTES of its tensors. None where the folder
    cannot be read."""
    digest = hashlib.sha256()
    try:
        digest.update((path / "config.json").read_bytes())
        for file in sorted(path.glob("*.safetensors")):
            size = file.stat().st_size
            with file.open("rb") as stream:
                # A file that is damaged may name any length.
                length = min(int.from_bytes(stream.read(8), "little"), size)
                digest.update(f"{file.name} {size} {length}".encode())
                digest.update(stream.read(length + SAMPLE_BYTES))
                stream.seek(max(0, size - SAMPLE_BYTES))
                digest.update(stream.read())
    except OSError:
        return None
    return digest.hexdigest()


def expected_tensors(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(Hugging Face name, size) of every tensor of the architecture."""
    hidden, q_size, kv_size = (
        shape.hidden_size,
        shape.num_heads * shape.head_size,
        shape.num_kv_heads * shape.head_size,
    )
    yield "model.embed_tokens.weight", (shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        for part, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            yield prefix + f"self_attn.{part}_proj.weight", (size, hidden)
            if shape.has_qkv_bias:
                yield prefix + f"self_attn.{part}_proj.bias", (size,)
        yield prefix + "self_attn.o_proj.weight", (hidden, q_size)
        if shape.has_qk_norm:
            yield prefix + "self_attn.q_norm.weight", (shape.head_size,)
            yield prefix + "self_attn.k_norm.weight", (shape.head_size,)
        if shape.num_experts is None:
            yield from _swiglu_tensors(prefix + "mlp.", hidden, shape.ffn_size)
            continue
        yield prefix + "mlp.gate.weight", (shape.num_experts, hidden)
        for expert in range(shape.num_experts):
            yield from _swiglu_tensors(f"{prefix}mlp.experts.{expert}.", hidden, shape.expert_ffn_size)
    yield "model.norm.weight", (hidden,)
    if not shape.is_tied:
        yield "lm_head.weight", (shape.vocab_size, hidden)


def _swiglu_tensors(prefix: str, hidden: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield prefix + "gate_proj.weight", (width, hidden)
    yield prefix + "up_proj.weight", (width, hidden)
    yield prefix + "down_proj.weight", (hidden, width)


def _read_shape(file: Path) -> ModelShape:
    try:
        config = json.loads(read_text(file))
    except FileNotFoundError:
        raise InputError(
            f"{file.parent} holds no config.json: it is not a Hugging Face model folder."
        ) from None
    except InputError:
        raise
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{file} holds {kind_of(config)}, expected an object.")
    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else "missing"
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"{file}: architecture {architecture} cannot be trained. Known: {', '.join(ARCHITECTURES)}."
        )
    _check_sizes(file, config)
    _refuse_unsupported(file, config)
    refuse_unknown_settings(file, config, architecture)
    theta, factor = _read_rope(file, config)
    try:
        return ModelShape(
            architecture=architecture,
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_size=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            ffn_size=config["intermediate_size"],
            vocab_size=config["vocab_size"],
            max_positions=config["max_position_embeddings"],
            rope_theta=theta,
            rope_scaling_factor=factor,
            norm_epsilon=config["rms_norm_eps"],
            is_tied=bool(config.get("tie_word_embeddings", False)),
            has_qkv_bias=architecture == "Qwen2ForCausalLM",
            has_qk_norm=architecture.startswith("Qwen3"),
            **(_read_experts(config) if architecture == "Qwen3MoeForCausalLM" else {}),
        )
    except KeyError as error:
        raise InputError(f"{file} has no {error}, which {architecture} needs.") from None


def _check_sizes(file: Path, config: dict[str, Any]) -> None:
    """Raises InputError for a size that is not a whole number above 0; a missing key is found later."""
    for key in SIZES:
        value = config.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InputError(f"{file}: {key} is {as_written(value)}, expected a whole number above 0.")
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(key) or {}, dict):
            raise InputError(f"{file}: {key} is {as_written(config[key])}, expected an object.")


def _read_experts(config: dict[str, Any]) -> dict[str, Any]:
    # transformers 5 writes the first name, transformers 4 the second.
    num_experts = config["num_local_experts" if "num_local_experts" in config else "num_experts"]
    return {
        "num_experts": num_experts,
        "experts_per_token": config["num_experts_per_tok"],
        "expert_ffn_size": config["moe_intermediate_size"],
        "are_expert_weights_normalised": bool(config.get("norm_topk_prob", False)),
    }


def _refuse_unsupported(file: Path, config: dict[str, Any]) -> None:
    """Raises InputError for a setting under which this trainer would not compute what transformers does."""
    if quantisation := config.get("quantization_config"):
        method = quantisation.get("quant_method", "?") if isinstance(quantisation, dict) else quantisation
        raise InputError(
            f"{file}: the model is quantized ({method}), which cannot be trained. Use the original."
        )
    if other := set(config.get("layer_types") or ()) - {"full_attention"}:
        raise InputError(f"{file}: layer_types has {sorted(other)}; only full_attention can be trained.")


def _read_rope(file: Path, config: dict[str, Any]) -> tuple[float, float | None]:
    """(theta, Llama 3 factor or None), from the keys of transformers 5 (rope_parameters) or 4."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind == "llama3" and all(rope.get(key) == value for key, value in LLAMA3_ROPE.items()):
        return theta, float(rope["factor"])
    raise InputError(
        f"{file}: rotary positions {rope} cannot be trained; only default and llama3 {LLAMA3_ROPE}."
    )


def _holds_weights(file: Path) -> bool:
    return file.name.endswith(WEIGHT_SUFFIXES)


def _product(size: tuple[int, ...]) -> int:
    total = 1
    for extent in size:
        total *= extent
    return total
