"""Wrong programs made for one test each fail it."""

from pathlib import Path

import pytest

from tests.verifiers.code.test_honest import read_pairs
from verifiers.verdict import Outcome

PAIRS = read_pairs(Path(__file__).parent / "cheats_by_test.txt")


@pytest.mark.parametrize(("program", "gold"), PAIRS)
def test_a_wrong_program_fails_the_test_it_was_made_for(submit, program, gold):
    verdict = submit(f"```python\n{program}\n```", gold).result()
    assert verdict.outcome is Outcome.WRONG, verdict
