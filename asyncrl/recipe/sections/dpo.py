"""The section `dpo`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from asyncrl.recipe.sections.section import NonNegativeFloat, Positive, PositiveFloat, Section


class DPO(Section):
    """Preference optimization, `stage: dpo`: the model learns which of two responses is preferred. A row has
    a prompt, chosen and rejected. The loss is a mean over the pairs of the batch."""

    rows_per_batch: Positive = 32
    """Pairs of a step."""
    loss: Literal["dpo", "ipo"] = "dpo"
    """h is how much more the policy prefers the chosen response than the reference does, the model that the
    run began with.
    dpo: -ln sigmoid(beta h), by sums over the tokens of a response (Rafailov et al. 2023).
    ipo: (h - 1 / (2 beta))^2, by means (Azar et al. 2023). For pairs that all agree, which dpo overfits."""
    beta: PositiveFloat = 0.1
    """How close the policy stays to the reference: the smaller, the farther it may go."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """With dpo, the chance that the two sides of a pair are the wrong way round (cDPO)."""
    nll_coefficient: NonNegativeFloat = 0.0
    """Weight of the negative log-likelihood of the chosen response, a mean over its tokens: where both
    responses become less likely (Pang et al. 2024: 1). 0: off."""
    too_long: Literal["refuse", "leave_out"] = "refuse"
    """Pairs with a side of more tokens than model.context_tokens.
    refuse: the first one ends the start.
    leave_out: they are counted and shown, and the others are used."""

    @model_validator(mode="after")
    def _check(self) -> "DPO":
        if self.loss == "ipo" and self.label_smoothing:
            raise ValueError(
                f"dpo.label_smoothing is {self.label_smoothing:g} but dpo.loss is ipo, which has no "
                f"probability to smooth. Remove it, or set dpo.loss to dpo."
            )
        return self
