"""A file of the user's that is named in a recipe: what may stand in it, and what is said of mistakes."""

from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.records import VerifierSpec
from asyncrl.tasks.verifier_cache import VerifierCache
from verifiers.pool import VerifierPool
from verifiers.registry import load_verifier
from verifiers.verdict import Outcome

OWN = """
from verifiers.verdict import Outcome, Verdict

def same(response, reference):
    return float(response == reference)

class Good:
    def __init__(self, scale=1): pass
    def parse_reference(self, raw): return raw
    def verify(self, response, reference): return same(response, reference)

class Waits(Good):
    async def verify(self, response, reference): return Verdict(Outcome.CORRECT, 1.0)

class Refuses(Good):
    def verify(self, response, reference): raise TypeError(f"not {type(self)}")
"""


async def test_a_plain_function_judges_as_it_does_in_a_call_from_python(folder: Path) -> None:
    verifier = load_verifier("./own.py:same", folder=folder)
    assert verifier.parse_reference("007") == "007"
    async with VerifierPool(1) as pool:
        judged = [await pool.verify("./own.py:same", {}, said, "007", folder=folder) for said in ("007", "7")]
    assert [each.outcome for each in judged] == [Outcome.CORRECT, Outcome.WRONG]


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        (
            "Godo",
            {},
            "./own.py has no class 'Godo'. Did you mean 'Good'? It has: same, Good, Waits, Refuses.",
        ),
        (
            "Waits",
            {},
            "verify is async, expected a plain method. A verifier that waits has verify_async beside it",
        ),
        ("Good", {"sclae": 2}, "could not be built with the options {'sclae': 2}: "),
    ],
)
def test_a_mistake_is_said_once_in_the_users_own_names(
    folder: Path, name: str, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InputError) as refused:
        VerifierCache(folder).get(VerifierSpec(f"./own.py:{name}", options))
    said = str(refused.value)
    assert sentence in said and "asyncrl_plugin" not in said
    assert said.count(f"own.py:{name}") == 1 and said.count("options") == len(options)


async def test_what_a_verifier_raises_names_no_module_of_ours(folder: Path) -> None:
    async with VerifierPool(1) as pool:
        verdict = await pool.verify("./own.py:Refuses", {}, "1", "1", folder=folder)
    assert "not <class 'own.Refuses'>" in verdict.detail
