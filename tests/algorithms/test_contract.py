"""The contract of a recipe's own terms: the built-in ones keep it, and each breach has its sentence."""

from pathlib import Path

import pytest
from fakes.loss_inputs import gradient, make_inputs

from asyncrl.algorithms.contract import check_rejection, check_surrogate, check_terms, check_weight
from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.own_terms import OwnTerm
from asyncrl.algorithms.rejections import REJECTIONS
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.algorithms.trust_regions import TRUST_REGIONS
from asyncrl.algorithms.weights import WEIGHTS
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm

OWN = """
import torch
def half(inputs, algorithm): return torch.full_like(inputs.proximal, 0.5)
def live(inputs, algorithm): return inputs.current.exp()
def scalar(inputs, algorithm): return torch.tensor(1.0)
def unbounded(inputs, algorithm): return (inputs.proximal - inputs.behavior).exp()
def negative(inputs, algorithm): return -torch.ones_like(inputs.proximal)
def over_the_pack(inputs, algorithm): return inputs.proximal.exp() / inputs.proximal.exp().sum()
def of_the_pack(inputs, algorithm): return inputs.current.exp().sum() > 2 * inputs.current.exp()
def likely(inputs, algorithm): return inputs.current > -1.0
def number(inputs, algorithm): return torch.ones_like(inputs.proximal)
def dead(inputs, algorithm): return -inputs.advantages * inputs.proximal
def squared(inputs, algorithm): return -inputs.advantages * inputs.current + 0.1 * inputs.current ** 2
def neighbourly(inputs, algorithm):
    total = torch.zeros(9).index_add(0, inputs.sequence_ids, inputs.current)
    return -inputs.advantages * total[inputs.sequence_ids]
def crash(inputs, algorithm): return inputs.nothing
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py"


def test_built_in_terms_keep_the_contract():
    for key, check, built_in in (
        ("importance_weight", check_weight, WEIGHTS),
        ("rejection", check_rejection, REJECTIONS),
        ("trust_region", check_rejection, TRUST_REGIONS),
        ("surrogate", check_surrogate, SURROGATES),
    ):
        for name, term in built_in.items():
            chosen = [name] if key in ("rejection", "trust_region") else name
            algorithm = Algorithm(**{key: chosen})
            check(OwnTerm(key, name, term), algorithm)


def test_terms_of_ones_own_are_used(own: str):
    algorithm = Algorithm(importance_weight=f"{own}:half", surrogate=f"{own}:squared")
    check_terms(algorithm)
    assert make_loss(algorithm, max_new_tokens=8) is not None


def test_a_trust_region_of_ones_own_leaves_out_the_surrogate_and_keeps_the_kl(own: str):
    algorithm = Algorithm(trust_region=[f"{own}:likely"], behavior_kl_coefficient=0.5)
    check_terms(algorithm)
    inputs = make_inputs(current=[-0.5, -2.0], behavior=[-0.5, -1.0], proximal=[-0.5, -1.0])
    parts = make_loss(algorithm, max_new_tokens=8)(inputs)
    assert parts.outside.tolist() == [False, True]
    assert gradient(parts.total, inputs) == pytest.approx([-1.0, -1.0])


@pytest.mark.parametrize(
    ("key", "name", "message"),
    [
        ("importance_weight", "live", "with a gradient; a weight has none"),
        ("importance_weight", "scalar", r"gave \(\) for 6 tokens; expected a tensor of shape \(6,\)"),
        ("importance_weight", "unbounded", "expected finite numbers. Bound log-ratios"),
        ("importance_weight", "negative", "expected weights of at least 0"),
        ("importance_weight", "over_the_pack", "a token may depend on its own sequence only"),
        ("importance_weight", "crash", "raised AttributeError"),
        ("importance_weight", "missing", 'has no "missing"'),
        ("rejection", "number", r"expected torch\.bool"),
        ("trust_region", "number", r"trust_region .*:number gave .*expected torch\.bool"),
        ("trust_region", "of_the_pack", "a token may depend on its own sequence only"),
        ("surrogate", "dead", "without a gradient"),
        ("surrogate", "neighbourly", "a token that was rejected would be trained by its neighbors"),
    ],
)
def test_a_term_that_breaks_the_contract_is_refused_by_name(own: str, key: str, name: str, message: str):
    value = f"{own}:{name}"
    with pytest.raises(InputError, match=message):
        check_terms(Algorithm(**{key: [value] if key in ("rejection", "trust_region") else value}))
