"""Right programs pass tests of every shape, and the golds they pass are worth something."""

import json
from pathlib import Path

import pytest

from verifiers.code.stubs import stubs
from verifiers.code.verifier import CodeVerifier
from verifiers.verdict import Outcome


def read_pairs(path: Path):
    """(program, gold) of each section, named."""
    pairs = []
    for section in path.read_text().split("\n=== ")[1:]:
        name, _, rest = section.partition("\n")
        program, _, test = rest.partition("\n---\n")
        gold = json.loads(test) if test.startswith('{"') else {"tests": [{"assert": test}]}
        pairs.append(pytest.param(program, gold, id=name))
    return pairs


PAIRS = read_pairs(Path(__file__).parent / "honest.txt")


@pytest.mark.parametrize(("program", "gold"), PAIRS)
def test_a_right_program_passes(submit, program, gold):
    verdict = submit(f"```python\n{program}\n```", gold).result()
    assert verdict.outcome is Outcome.CORRECT, verdict.detail


# Each gold is tried with up to 13 programs: a third of them are typical of all.
STUBBED = [
    pytest.param(*pair.values, id=pair.id, marks=[pytest.mark.exhaustive] * bool(number % 3))
    for number, pair in enumerate(PAIRS)
]


@pytest.mark.parametrize(("program", "gold"), STUBBED)
def test_no_program_that_solves_nothing_passes_the_same_gold(submit, program, gold):
    futures = {kind: submit(response, gold) for kind, response in stubs(CodeVerifier().parse_reference(gold))}
    passed = [kind for kind, future in futures.items() if future.result().outcome is not Outcome.WRONG]
    assert passed == []
