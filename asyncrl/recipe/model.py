"""The section `model`."""

from typing import Literal

from asyncrl.recipe.section import Positive, Section


class Model(Section):
    """The base model."""

    path: str
    """Hugging Face folder: config.json, safetensors, tokenizer.json."""
    context_tokens: Positive | None = None
    """Maximum length of prompt plus response. Default: the model's max_position_embeddings."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Weights and activations on both engines. bfloat16 keeps float32 master weights in the optimizer."""
