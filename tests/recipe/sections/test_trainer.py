"""Which numbers of processes go together."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError


@pytest.mark.parametrize(
    ("num_processes", "parallel", "message"),
    [
        (3, {"tensor": 2}, r"num_processes is 3 but tensor x pipeline x context of trainer\.parallel is 2"),
        (4, {"pipeline": 2, "expert": 4}, r"parallel\.expert is 4, which does not divide the 2 processes"),
        (2, {"virtual_stages": 2}, r"virtual_stages is 2 but trainer\.parallel\.pipeline is 1"),
        (2, {"sequence_parallel": True}, r"sequence_parallel is true but trainer\.parallel\.tensor is 1"),
    ],
)
def test_a_layout_that_contradicts_itself_is_refused(
    num_processes: int, parallel: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make_recipe(Path("m"), trainer={"num_processes": num_processes, "parallel": parallel})
