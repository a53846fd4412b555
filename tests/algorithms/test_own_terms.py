"""Terms of a recipe's own, checked at each call of the loss, whatever they gave on the examples."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes.loss_inputs import gradient, make_inputs

from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.losses import make_loss
from asyncrl.algorithms.own_terms import (
    GradientWatch,
    OwnTerm,
    check_rejection,
    check_surrogate,
    check_terms,
    check_weight,
    describe,
    own_names,
)
from asyncrl.algorithms.rejections import REJECTIONS, TRUST_REGIONS
from asyncrl.algorithms.surrogates import SURROGATES
from asyncrl.algorithms.weights import WEIGHTS
from asyncrl.errors import InputError
from asyncrl.recipe import Algorithm

DEFAULT = Algorithm()
NAMES = ["00000003-00", "00000003-01"]


def term(key: str, give: Callable[[LossInputs], object]) -> OwnTerm:
    return OwnTerm(key, "./own.py:mine", lambda inputs, algorithm: give(inputs))  # type: ignore[arg-type, return-value]


def two_sequences() -> LossInputs:
    return make_inputs(current=[-1.0, -2.0, -3.0], sequence_ids=[0, 0, 1])


@pytest.mark.parametrize(
    ("key", "give", "said"),
    [
        ("importance_weight", lambda inputs: [1.0] * 3, r"gave list for 3 tokens"),
        ("importance_weight", lambda inputs: None, r"gave NoneType for 3 tokens"),
        (
            "importance_weight",
            lambda inputs: torch.ones(2),
            r"gave \(2,\) .* expected a tensor of shape \(3,\)",
        ),
        (
            "importance_weight",
            lambda inputs: torch.ones(3, dtype=torch.long),
            r"gave torch\.int64; expected fl",
        ),
        (
            "importance_weight",
            lambda inputs: torch.ones(3, device="meta"),
            r"gave a tensor on meta; expected cpu",
        ),
        ("rejection", lambda inputs: torch.ones(3), r"gave torch\.float32; expected torch\.bool"),
        ("surrogate", lambda inputs: inputs.proximal, "without a gradient"),
        ("surrogate", lambda inputs: inputs.nothing, "raised AttributeError"),
    ],
)
def test_what_is_no_tensor_for_a_loss_raises_at_once(
    key: str, give: Callable[[LossInputs], object], said: str
) -> None:
    with pytest.raises(InputError, match=rf"algorithm\.{key} \./own\.py:mine.*{said}"):
        term(key, give)(two_sequences(), DEFAULT)


def test_a_surrogate_needs_no_gradient_where_none_is_asked_for() -> None:
    with torch.no_grad():
        found = term("surrogate", lambda inputs: -inputs.current)(two_sequences(), DEFAULT)
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        (
            "importance_weight",
            [1.0, 0.5, -2.0],
            "gave -2.0 at 1 token(s) of a micro-batch, first in the trajectory",
        ),
        ("importance_weight", [1.0, float("nan"), float("inf")], "gave nan at 2 token(s)"),
        ("importance_weight", [0.0, 0.5, 5.0], ""),
        ("surrogate", [-1.0, 0.5, float("-inf")], "gave -inf at 1 token(s)"),
        ("surrogate", [-1.0, 0.5, 2.0], ""),
    ],
)
def test_values_are_judged_for_the_tokens_that_count(key: str, values: list[float], said: str) -> None:
    own, inputs = term(key, lambda inputs: None), two_sequences()
    words = describe([(own.faults(torch.tensor(values), inputs), NAMES)])
    assert words.startswith(f"algorithm.{key} ./own.py:mine {said}") if said else not words
    unmasked = make_inputs(current=[-1.0] * 3, mask=[True, False, False])
    assert not describe([(own.faults(torch.tensor([1.0, float("nan"), -1.0]), unmasked), NAMES)])


def test_a_value_beyond_float32_is_no_number() -> None:
    own = term("importance_weight", lambda inputs: None)
    values = torch.tensor([1.0, 1.0, 2e39], dtype=torch.float64)
    words = describe([(own.faults(values, two_sequences()), NAMES)])
    assert words.endswith("gave 2e+39 at 1 token(s) of a micro-batch, first in the trajectory 00000003-01")


def test_no_token_is_no_fault() -> None:
    own = term("importance_weight", lambda inputs: None)
    assert not describe([(own.faults(torch.ones(0), _nothing()), NAMES)])


def _nothing() -> LossInputs:
    none = torch.zeros(0)
    empty = torch.zeros(0, dtype=torch.long)
    return LossInputs(none, none, none, none, none.bool(), empty)


def test_a_gradient_that_is_not_finite_is_noted_where_it_comes_in() -> None:
    inputs, watch = two_sequences(), GradientWatch()
    watch.watch("algorithm.surrogate ./own.py:mine has a loss with the gradient", inputs, NAMES)
    # The square root is finite at 0, its slope is not.
    (inputs.current + 2).abs().sqrt().sum().backward()
    assert describe(watch.found) == (
        "algorithm.surrogate ./own.py:mine has a loss with the gradient nan at 1 token(s) of a micro-batch, "
        "first in the trajectory 00000003-00"
    )


def test_a_recipe_names_its_own_terms() -> None:
    algorithm = Algorithm(advantage="./a.py:a", rejection=["token_veto", "./b.py:b"])
    assert own_names(algorithm) == ["algorithm.advantage ./a.py:a", "algorithm.rejection ./b.py:b"]


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
