"""The section `model`, with its subsection `model.lora`."""

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from asyncrl.errors import did_you_mean
from asyncrl.recipe.sections.section import PATH_OR_HUB_ID, Positive, PositiveFloat, Section

Target = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TARGETS: tuple[Target, ...] = get_args(Target)
RATE_FACTOR = 10.0
"""Default learning rate of adapters, as a multiple of that of all weights."""


class Lora(Section):
    """Low-rank adapters (LoRA, arXiv 2106.09685), for models whose gradients and optimizer states have no
    room: 7 B fit one 80 GB GPU beside its server. Each target's weight is W + alpha / rank x B A, rounded to
    model.dtype, and only A and B are trained. Servers get the sums, so that they see an ordinary model."""

    rank: Positive
    """Rows of A and columns of B. For RL 1 to 32 are enough: a response teaches a few bits ("LoRA Without
    Regret", Thinking Machines 2025)."""
    alpha: PositiveFloat = 32.0
    """Numerator of the scale alpha / rank. With a fixed alpha the best learning rate hardly depends on the
    rank."""
    targets: Annotated[list[Target], Field(min_length=1)] = list(TARGETS)
    """Matrices inside the layers that get an adapter, by peft's names. Default: all of them, the experts'
    too; attention alone learns less."""
    dropout: float = 0.0
    """0 alone: dropout would give the trainer other log-probs than the servers', on policy too."""

    @field_validator("targets", mode="before")
    @classmethod
    def _check_targets(cls, targets: object) -> object:
        for name in targets if isinstance(targets, list) else ():
            if isinstance(name, str) and name not in TARGETS:
                meant = did_you_mean(name, TARGETS, f" Known: {', '.join(TARGETS)}.")
                raise ValueError(f"model.lora.targets has {name!r}, which gets no adapter.{meant}")
        if isinstance(targets, list) and len(set(map(str, targets))) < len(targets):
            raise ValueError(f"model.lora.targets is {targets}: expected each name once.")
        return targets

    @field_validator("dropout")
    @classmethod
    def _check_dropout(cls, dropout: float) -> float:
        if dropout != 0.0:
            raise ValueError(
                f"model.lora.dropout is {dropout:g}: with dropout the trainer's log-probs are not those of "
                f"the weights that the servers sample from, even without staleness. Set it to 0."
            )
        return dropout

    def scale(self) -> float:
        """Factor on B A."""
        return self.alpha / self.rank


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
