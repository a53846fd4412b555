"""The section `model.lora`."""

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from asyncrl.errors import did_you_mean
from asyncrl.recipe.sections.section import Positive, PositiveFloat, Section

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
