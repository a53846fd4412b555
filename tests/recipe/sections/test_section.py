"""Numbers that a section cannot work with are refused with their key and value."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rollout.samples_per_group", 0, "is 0"),
        ("trainer.learning_rate", -1, "is -1"),
        ("trainer.learning_rate", math.inf, "is inf"),
        ("trainer.learning_rate", math.nan, "is nan"),
        ("trainer.learning_rate", 1e6, r"is 1000000\.0: .*less than or equal to 1"),
        ("critic.learning_rate", math.inf, "is inf"),
        ("rollout.temperature", math.inf, "is inf"),
        ("rollout.oversampling", math.inf, "is inf"),
        ("algorithm.kl.coefficient", math.inf, "is inf"),
        ("algorithm.entropy_bonus.coefficient", math.inf, "is inf"),
        ("algorithm.overlong.penalty", math.inf, "is inf"),
        ("algorithm.surrogate.dual_clip", math.inf, "is inf"),
        ("algorithm.rejection", [{"name": "token_veto", "low": math.inf}], r"\.0\.low is inf"),
    ],
)
def test_a_number_out_of_range_is_named(key: str, value: Any, said: str) -> None:
    section, *names = key.split(".")
    for name in reversed(names):
        value = {name: value}
    with pytest.raises(InputError, match=rf"{re.escape(key)} ?{said}"):
        make_recipe(Path("m"), **{section: value})
