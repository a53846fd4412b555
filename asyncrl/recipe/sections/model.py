"""The section `model`."""

from typing import Annotated, Literal

from asyncrl.recipe.lora import Lora
from asyncrl.recipe.markers import PATH_OR_HUB_ID
from asyncrl.recipe.sections.section import Positive, Section


class Model(Section):
    """The base model."""

    path: Annotated[str, PATH_OR_HUB_ID]
    """Hugging Face folder (config.json, safetensors, tokenizer.json), GGUF file (Llama or Qwen2), or hub id
    such as Qwen/Qwen2.5-0.5B, fetched once. A path that exists wins over a hub id of the same name."""
    revision: str | None = None
    """Branch, tag or commit of a hub id. Default: its main branch. A run keeps the commit it began with."""
    context_tokens: Positive | None = None
    """Maximum length of prompt plus response. Default: the model's max_position_embeddings."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Weights and activations on both engines. bfloat16 keeps float32 master weights in the optimizer.
    auto: bfloat16 on GPUs and on CPUs with avx512_bf16 or AMX; float32 on others, and for models below 50 M
    parameters. `asyncrl check` says which and why."""
    float32_logits: bool = False
    """Logits of a bfloat16 model in float32 on both engines (MiniMax-M1, ScaleRL): the output layer's results
    are not rounded, so the engines' log-probs differ less. Costs time on a CPU, which converts the layer in
    each pass. Nothing changes for float32 models."""
    lora: Lora | None = None
    """Trains low-rank adapters in place of all weights."""
