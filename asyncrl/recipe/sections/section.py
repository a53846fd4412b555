"""Parts that every section of a recipe is made of: the base class and the kinds of numbers."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _whole_characters(value: str) -> str:
    if "\ufffd" in value:
        raise ValueError(
            f"a stop string is {value!r}: U+FFFD stands for a character with missing bytes, which cannot "
            f"be searched for. Remove it."
        )
    return value


StopString = Annotated[str, Field(min_length=1), AfterValidator(_whole_characters)]
TokenName = Annotated[str, Field(min_length=1)]


Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Nucleus = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
"""top-p: 1 keeps all tokens."""
MinP = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
LearningRate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
"""Adam moves each weight by about this much per step."""
Seed = Annotated[int, Field(ge=0, lt=2**31)]
"""Servers, ranks and tasks of a gym add their number to it, and numpy takes 32 bits."""


class Section(BaseModel):
    """Frozen; refuses unknown keys, and values of another kind such as "8" for 8 or 1 for true.

    The string under a field documents its key in `asyncrl keys`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)
