"""What a recipe may say about batches."""

from pathlib import Path

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError


def test_the_order_of_the_staleness_experiment_is_not_offered() -> None:
    said = r"replay\.order is 'stalest': input should be 'admission', 'strict_admission', 'freshness' or"
    with pytest.raises(InputError, match=said):
        make_recipe(Path("m"), replay={"order": "stalest"})
