"""A Hugging Face model folder, checked without torch: config.json and the headers of the safetensors files.

What each architecture reads and which tensors it has is in `families`. Anything this trainer would compute
differently from transformers (sliding windows, biases it has no place for) is refused here. A setting of
config.json is one of four kinds: its value shapes the model (`SHAPING`), one value of it can be trained
(`ONLY`), it has no effect on what the model computes (`WITHOUT_EFFECT`), or it is unknown. An unknown one may
change what transformers and SGLang compute, so only an empty value of it passes.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.families import FAMILIES, nearest
from asyncrl.model.families.family import Family
from asyncrl.model.rotary import Rotation, check_served, read_rotation, rotary_fields
from asyncrl.model.shape import ModelShape
from asyncrl.model.weights import expected_tensors, read_weights, tensor_names
from asyncrl.recipe.file import PATH_RULE
from asyncrl.system.files import read_json_object
from asyncrl.system.paths import nearest_path
from asyncrl.system.words import as_written

SAMPLE_BYTES = 65536
"""Sampled bytes of the weights at each end of a file: models of one shape and size differ there."""
SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size", "max_position_embeddings"),
    *("num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    *("shared_expert_intermediate_size", "decoder_sparse_step", "n_routed_experts", "n_shared_experts"),
    "original_max_position_embeddings",
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    *("linear_conv_kernel_dim", "full_attention_interval"),
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("n_group", "topk_group"),
)
WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf")


def check_model_folder(path: Path) -> ModelShape:
    """The shape of the model in `path`. Raises InputError when the folder cannot be trained from."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(
            f"model.path is {path}, which is not a folder. Expected a Hugging Face model folder, a GGUF file "
            f"or a hub id (owner/name). {PATH_RULE}"
            f"{nearest_path(path, lambda each: each.is_dir() or each.suffix == '.gguf')}"
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
    known |= _unread(found, shape)
    if unknown := sorted(found.keys() - known):
        raise InputError(
            f"{path}: {len(unknown)} tensors that {shape.architecture} does not have here, first "
            f"{unknown[0]}. Training would lose them."
        )
    return shape


def unread_notes(path: Path, shape: ModelShape) -> list[str]:
    """A note where the folder that was checked has tensors that are not trained."""
    if not (unread := _unread(tensor_names(path), shape)):
        return []
    return [
        f"{path} has {len(unread)} tensors that transformers does not read for {shape.architecture}, such as "
        f"{min(unread)}. They are not trained, and no checkpoint or publication has them."
    ]


def _unread(names: Iterable[str], shape: ModelShape) -> set[str]:
    pattern = FAMILIES[shape.architecture].unread
    if pattern is None:
        return set()
    unread = re.compile(pattern.format(num_layers=shape.num_layers))
    return {name for name in names if unread.fullmatch(name)}


def read_shape(path: Path) -> ModelShape:
    """The shape that config.json of `path` says, weights unseen. Raises InputError."""
    return _read_shape(path / "config.json")


def other_files(path: Path) -> list[Path]:
    """Configuration and tokenizer: every plain file of the folder that holds no weights."""
    return [
        file for file in sorted(path.iterdir()) if file.is_file() and not file.name.endswith(WEIGHT_SUFFIXES)
    ]


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


def _read_shape(file: Path) -> ModelShape:
    if not file.is_file():
        raise InputError(f"{file.parent} holds no config.json: it is not a Hugging Face model folder.")
    config = read_json_object(file)
    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else "missing"
    family = FAMILIES.get(architecture)
    if family is None:
        relative = nearest(config)
        raise InputError(
            f"{file}: architecture {architecture} cannot be trained. Its nearest relative here is "
            f"{relative.architecture} ({relative.models}). Known: {', '.join(FAMILIES)}."
        )
    _check_sizes(file, config)
    _refuse_unsupported(file, config, family)
    config = family.completed(config)
    refuse_unknown_settings(file, config, family)
    try:
        usual: dict[str, Any] = {
            "num_kv_heads": config.get("num_key_value_heads") or config["num_attention_heads"],
            "head_size": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            "is_tied": bool(config.get("tie_word_embeddings", False)),
            **_read_rotary(file, config, family),
        }
        # A window that the context fits into hides nothing.
        window = config.get("sliding_window") if family.has_window else None
        limits = [config["max_position_embeddings"], window or math.inf]
        if usual["rotation"] is not None:
            limits.append(usual["rotation"].max_positions())
        return ModelShape(
            architecture=architecture,
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            num_heads=config["num_attention_heads"],
            ffn_size=config["intermediate_size"],
            vocab_size=config["vocab_size"],
            norm_epsilon=config["rms_norm_eps"],
            max_positions=int(min(limits)),
            **usual | family.read(config),
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


def _refuse_unsupported(file: Path, config: dict[str, Any], family: Family) -> None:
    """Raises InputError for a setting under which this trainer would not compute what transformers does."""
    if quantisation := config.get("quantization_config"):
        method = quantisation.get("quant_method", "?") if isinstance(quantisation, dict) else quantisation
        raise InputError(
            f"{file}: the model is quantized ({method}), which cannot be trained. {family.unquantized}"
        )
    kinds = config.get("layer_types") or ()
    if other := set(kinds) - family.layer_types:
        raise InputError(
            f"{file}: layer_types has {sorted(other)}; only {', '.join(sorted(family.layer_types))} can be "
            f"trained."
        )
    if len(family.layer_types) > 1 and kinds and len(kinds) != config.get("num_hidden_layers"):
        raise InputError(
            f"{file}: layer_types has {len(kinds)} entries, but num_hidden_layers is "
            f"{config.get('num_hidden_layers')}."
        )


def _read_rotary(file: Path, config: dict[str, Any], family: Family) -> dict[str, Any]:
    """Fields of the shape, from the keys of transformers 5 (rope_parameters) or 4."""
    named, scaling = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    theta = config.get("rope_theta", family.rope_theta)
    if family.sliding_rope_theta is None:
        usual = _read_kind(file, config, family, named or scaling, theta)
        if family.serves_old_rotary_keys:
            served = _read_kind(file, config, family, scaling, theta)
            check_served(file, usual, Rotation(usual.theta), served)
        return rotary_fields(usual)
    if named.keys() - {"full_attention", "sliding_attention"}:
        raise InputError(
            f"{file}: rope_parameters is {as_written(named)}, expected an entry for full_attention and one "
            f"for sliding_attention."
        )
    usual = _read_kind(file, config, family, named.get("full_attention") or scaling, theta)
    base = config.get("rope_local_base_freq", family.sliding_rope_theta)
    sliding = _read_kind(file, config, family, named.get("sliding_attention") or {}, base)
    if family.serves_old_rotary_keys:
        check_served(file, usual, sliding, _read_kind(file, config, family, scaling, theta))
    return rotary_fields(usual, sliding)


def _read_kind(
    file: Path, config: dict[str, Any], family: Family, rope: dict[str, Any], theta: float
) -> Rotation:
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if family.original_positions is not None:
        original = config.get("original_max_position_embeddings", family.original_positions)
        factor = config["max_position_embeddings"] / original
        rope = rope | {"original_max_position_embeddings": original, "factor": factor}
    return read_rotation(
        file,
        rope,
        theta=theta,
        head_size=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        share=family.rotated_share if share is None else share,
        is_interleaved=family.is_rotation_interleaved,
        kinds=family.rope_kinds,
    )


SHAPING = frozenset(
    (
        *("architectures", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
        *("head_dim", "intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps"),
        *("tie_word_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "layer_types"),
        "quantization_config",
    )
)
"""Read or refused by `asyncrl.model.folder`, for each architecture."""
ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "attention_dropout": (0.0,),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1.0,),
    "rope_is_neox_style": (True,),
}
"""The values under which this trainer computes what transformers does; null is one, too."""
ROPE_KEYS = frozenset(
    (
        *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
        *("original_max_position_embeddings", "partial_rotary_factor", "attention_factor", "truncate"),
        *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "short_factor", "long_factor"),
    )
)
"""Understood in rope_parameters and rope_scaling."""
_BOOKKEEPING = (
    *("name_or_path", "_name_or_path", "_commit_hash", "transformers_version", "auto_map"),
    *("dtype", "torch_dtype", "use_cache", "attn_implementation", "_attn_implementation"),
    *("_attn_implementation_autoset", "is_llama_config", "transformers.js_config", "tokenizer_class"),
    *("unsloth_fixed", "unsloth_version", "pretraining_tp", "chunk_size_feed_forward"),
)
_OUTPUTS = (
    *("return_dict", "output_attentions", "output_hidden_states", "output_router_logits", "id2label"),
    *("label2id", "problem_type", "is_encoder_decoder", "num_labels"),
)
_TRAINING = ("initializer_range", "router_aux_loss_coef")
_GENERATION = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "max_length", "min_length", "do_sample", "num_beams"),
    *("num_beam_groups", "num_return_sequences", "temperature", "top_k", "top_p", "typical_p"),
    *("repetition_penalty", "length_penalty", "max_new_tokens"),
)
WITHOUT_EFFECT = frozenset((*_BOOKKEEPING, *_OUTPUTS, *_TRAINING, *_GENERATION))
"""None of these changes the logits; how rollouts are sampled is for the recipe to say."""


def refuse_unknown_settings(file: Path, config: dict[str, Any], family: Family) -> None:
    """Raises InputError for the first setting of `config` that this trainer would ignore, with its value."""
    kind, architecture = config.get("model_type"), family.architecture
    if kind not in (None, family.model_type):
        raise InputError(
            f"{file}: model_type is {as_written(kind)}, but architectures names {architecture}, whose "
            f"model_type is {family.model_type!r}: transformers and asyncrl would compute different models."
        )
    known = SHAPING | {"model_type"} | WITHOUT_EFFECT | family.settings | family.ignored
    only = {key: values for key, values in (ONLY | dict(family.only)).items() if key not in family.settings}
    for key, value in config.items():
        if key in only:
            if value is not None and value not in only[key]:
                raise InputError(
                    f"{file}: {key} is {as_written(value)}; only {as_written(only[key][0])} can be trained."
                )
        elif key not in known and not _is_empty(value):
            raise InputError(
                f"{file}: {key} is {_short(value)}, which asyncrl does not know for {architecture}: it "
                f"might train a different model. If the setting has no effect, remove it."
            )
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name) or {}
        kinds = [kind for kind in family.layer_types if isinstance(rope.get(kind), dict)]
        for kind in kinds:
            _refuse_unknown_rope(file, f"{name}.{kind}", rope[kind], only)
        rest = {key: value for key, value in rope.items() if key not in kinds}
        _refuse_unknown_rope(file, name, rest, only)


def _refuse_unknown_rope(
    file: Path, name: str, rope: dict[str, Any], only: Mapping[str, tuple[Any, ...]]
) -> None:
    for key, value in rope.items():
        allowed = only.get(key)
        if allowed is not None and value is not None and value not in allowed:
            raise InputError(
                f"{file}: {name}.{key} is {as_written(value)}; only {as_written(allowed[0])} can be trained."
            )
        if key not in ROPE_KEYS and not _is_empty(value):
            raise InputError(
                f"{file}: {name}.{key} is {_short(value)}, which asyncrl does not know: positions may be "
                f"rotated differently than the model expects. If it has no effect, remove it."
            )


def _is_empty(value: Any) -> bool:
    """Whether a setting of this value is off: null, false, 0, or nothing in it."""
    return value is None or value == 0 or value in ("", [], {})


def _short(value: Any) -> str:
    text = as_written(value)
    return text if len(text) <= 80 else text[:77] + "..."
