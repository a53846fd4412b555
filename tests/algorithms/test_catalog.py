"""The catalog: every term is documented, and every name of the recipe is a term."""

import json

import pytest

from asyncrl.algorithms.advantages import ADVANTAGES
from asyncrl.algorithms.catalog import NOT_MEASURED, SECTIONS, VERDICTS, catalog, markdown
from asyncrl.algorithms.divergences import DIVERGENCES, WEIGHTED_DIVERGENCES
from asyncrl.algorithms.entropy_controls import ENTROPY_CONTROLS
from asyncrl.algorithms.rejections import REJECTIONS, TRUST_REGIONS
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.algorithms.weights import REDUCTIONS, WEIGHTS
from asyncrl.commands import main as cli
from asyncrl.recipe import Algorithm
from asyncrl.recipe.algorithm_terms import Kl
from asyncrl.recipe.presets import PRESETS
from asyncrl.recipe.terms import kinds_in, names_of

NAMED_BY_THE_KEY = (
    *("top_entropy_share", "probability_damping", "nll_coefficient"),
    *("behavior_kl_coefficient", "divides_by_batch_std", "masks_cut_off"),
)
"""Keys whose documentation names no term: numbers that turn one on, and letters."""


@pytest.mark.parametrize("entry", catalog(), ids=lambda entry: f"{entry.key}={entry.name}")
def test_every_term_has_a_formula_a_source_with_a_year_a_use_and_a_failure(entry):
    assert entry.formula and len(entry.use) > 20 and len(entry.fails) > 20
    assert any(f"{year}" in entry.source for year in (1992, *range(2015, 2027))), entry.source


def test_a_term_without_a_measurement_says_so_and_each_verdict_is_of_a_term():
    terms = {f"{entry.key}={entry.name}": entry.measured for entry in catalog()}
    measured = json.loads(VERDICTS.read_text(encoding="utf-8"))
    assert set(measured) <= set(terms)
    assert terms == dict.fromkeys(terms, NOT_MEASURED) | measured


def names_in(key: str) -> set[str]:
    return {name for kind in kinds_in(Algorithm.model_fields[key].annotation) for name in names_of(kind)}


def test_every_name_in_the_recipe_is_a_term():
    fields = Algorithm.model_fields
    assert names_in("advantage") == set(ADVANTAGES)
    assert names_in("importance_weight") == set(WEIGHTS)
    assert names_in("rejection") == set(REJECTIONS)
    assert names_in("trust_region") == set(TRUST_REGIONS)
    assert names_in("surrogate") == set(SURROGATES)
    assert names_in("entropy_control") == {"none", *ENTROPY_CONTROLS}
    assert set(fields["reduction"].annotation.__args__) == set(REDUCTIONS)
    assert set(Kl.model_fields["estimator"].annotation.__args__) == {*DIVERGENCES, *WEIGHTED_DIVERGENCES}


def test_the_documentation_of_a_key_names_each_of_its_terms():
    for key, terms in SECTIONS.items():
        section, _, name = key.rpartition(".")
        kind = {"algorithm": Algorithm, "algorithm.kl": Kl}.get(section)
        if kind is not None and name not in NAMED_BY_THE_KEY:
            assert all(term in kind.model_fields[name].description for term in terms), key


def test_the_command_prints_one_table_per_key_and_one_of_the_presets(capsys: pytest.CaptureFixture[str]):
    printed = said(capsys)
    keys = [*SECTIONS, "algorithm.preset"]
    assert [line for line in printed.splitlines() if line.startswith("###")] == [
        f"### `{key}`" for key in keys
    ]
    assert sum(line.startswith("| `") for line in printed.splitlines()) == len(catalog()) + len(PRESETS)


def test_one_name_is_printed_alone(capsys: pytest.CaptureFixture[str]):
    printed = said(capsys, "truncated")
    assert printed.startswith("### `algorithm.importance_weight`\n") and printed.count("\n| `") == 1
    assert said(capsys, "surrogate") == said(capsys, "algorithm.surrogate") == markdown("algorithm.surrogate")
    assert "`algorithm.overlong: {penalty: 0.5}`" in said(capsys, "dapo")
    # A term and a preset of one name.
    printed = said(capsys, "gspo")
    assert "### `algorithm.surrogate`" in printed and "### `algorithm.preset`" in printed


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["algorithms", *words]) == 0
    return capsys.readouterr().out


def test_a_name_of_nothing_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["algorithms", "truncatd"]) == 2
    assert "Did you mean truncated?" in capsys.readouterr().err
