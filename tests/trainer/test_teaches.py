"""Which sequences a step must go back through: without an advantage most losses have no gradient."""

import dataclasses

import pytest
from fakes.loss_inputs import gradient, make_inputs
from fakes.models import random_batch

from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.algorithms.weights import WEIGHTS
from asyncrl.recipe import Algorithm
from asyncrl.trainer.step.objective import Objective

SOUND = random_batch(0).sequences[0]
SILENT = dataclasses.replace(SOUND, advantage=0.0)
LATER = dataclasses.replace(SILENT, turn_advantages=[(1, 0.0), (SOUND.num_sampled() - 1, -0.5)])


def teaches(algorithm: Algorithm) -> tuple[bool, bool]:
    """Whether a sequence does with an advantage, and without one."""
    objective = Objective(algorithm, max_new_tokens=8)
    return objective.teaches(SOUND), objective.teaches(SILENT)


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_sequence_without_an_advantage_has_no_gradient_under_any_built_in_loss(surrogate: str, weight: str):
    algorithm = Algorithm(surrogate=surrogate, importance_weight=weight, rejection=["token_range"])
    assert teaches(algorithm) == (True, False)
    inputs = make_inputs(
        current=[-1.0, -0.4, -3.0],
        behavior=[-1.2, -0.5, -2.5],
        proximal=[-1.1, -0.7, -2.6],
        advantages=[0.0] * 3,
    )
    total, *_ = make_loss(algorithm, max_new_tokens=8)(inputs)
    assert total.item() == 0.0
    assert gradient(total, inputs) == [0.0, 0.0, 0.0]


def test_a_later_turn_teaches_by_itself():
    assert Objective(Algorithm(), max_new_tokens=8).teaches(LATER)


@pytest.mark.parametrize(
    "section",
    [
        {"kl": {"coefficient": 0.1}},
        {"kl": {"coefficient": 0.1, "place": "reward"}},
        {"entropy_bonus": {"coefficient": 0.01}},
        {"surrogate": "my_losses:imitate"},
    ],
    ids=lambda section: " ".join(map(str, section.items())),
)
def test_every_sequence_teaches_where_more_than_its_advantage_gives_a_gradient(
    section: dict, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("asyncrl.recipe.terms.load_object", lambda name: None)
    assert teaches(Algorithm(**section)) == (True, True)
