"""What every section of a recipe is made of: the base class and the kinds of numbers."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
LearningRate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
"""Adam moves each weight by about this much per step."""


class Section(BaseModel):
    """Frozen; refuses unknown keys. The string under a field documents its key in `asyncrl keys`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
