"""Which settings of a config.json are understood. Any other that is set is refused by name.

A setting is one of four kinds: its value shapes the model (`SHAPING`), one value of it can be trained
(`ONLY`), it has no effect on what the model computes (`WITHOUT_EFFECT`), or it is unknown. An unknown one
may change what transformers and SGLang compute, so only an empty value of it passes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.model.families.family import Family
from asyncrl.system.words import as_written

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
