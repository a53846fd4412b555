"""The section `model`."""

from typing import Annotated, Literal

from asyncrl.recipe.lora import Lora
from asyncrl.recipe.markers import PATH_OR_HUB_ID
from asyncrl.recipe.sections.section import Positive, Section


class Model(Section):
    """The base model."""

    path: Annotated[str, PATH_OR_HUB_ID]
    """Hugging Face folder (config.json, safetensors, tokenizer.json), GGUF file (Llama or Qwen2), or hub id
    such as Qwen/Qwen2.5-0.5B, fetched once. A path that exists wins over a hub id of the same name. Or the
    folder of a run that has ended: runs/sft is its last step, runs/sft@best its best on held-out data
    (trainer.keep_best), runs/sft@40 that step."""
    revision: str | None = None
    """Branch, tag or commit of a hub id. Default: its main branch. A run keeps the commit it began with."""
    context_tokens: Positive | None = None
    """Maximum length of prompt plus response. Default: the model's max_position_embeddings."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights and activations on both engines. The 16-bit ones keep float32 master weights in the optimizer.
    auto: bfloat16 on GPUs and on CPUs with avx512_bf16 or AMX; float32 on others, and for models below 50 M
    parameters. `asyncrl check` says which and why.
    float16: rounds eight times finer than bfloat16, so that trainer and servers differ less (arXiv
    2510.26788), but ends at 65,504: losses are scaled (trainer.initial_loss_scale). For runs whose mismatch
    is too large in bfloat16; optimizer adam."""
    float32_logits: bool = False
    """Logits of a 16-bit model in float32 on both engines (MiniMax-M1, ScaleRL): the output layer's results
    are not rounded, so the engines' log-probs differ less. Costs time on a CPU, which converts the layer in
    each pass. Nothing changes for float32 models."""
    bitwise_agreement: bool = False
    """Both engines compute log-probs by the same kernels in the same order, so that the log-prob of a token
    of the trainer's own version is the server's to the last bit: its importance ratio is exactly 1. For dense
    models on a CPU; slower on both sides, see docs/agreement.md."""
    lora: Lora | None = None
    """Trains low-rank adapters in place of all weights."""
