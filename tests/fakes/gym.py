"""Tests that need reasoning-gym, and rows that it made."""

import json
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from asyncrl.data.gym_process import Request, make_row
from verifiers.gym import build_dataset

NEEDS_GYM = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="needs reasoning-gym: `make setup GYM=1`"
)


@cache
def _row_text(name: str, index: int) -> str:
    request = Request(name, {}, seed=3, size=50, start=index, stop=index + 1)
    return json.dumps(make_row(request, build_dataset(name, {}, seed=3, size=50), index))


def gym_gold(name: str, index: int = 0) -> dict[str, Any]:
    """The answer column of task `index` of the dataset `name`, seed 3."""
    gold: dict[str, Any] = json.loads(_row_text(name, index))["answer"]
    return gold
