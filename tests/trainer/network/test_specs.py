import functools

import pytest
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec

from asyncrl.trainer.ranks.megatron import parts_of

PARTS = MLPSubmodules(linear_fc1=object, linear_fc2=object)


@pytest.mark.parametrize(
    "spec", [ModuleSpec(MLP, submodules=PARTS), functools.partial(MLP, submodules=PARTS)]
)
def test_the_parts_of_a_spec_are_those_that_a_layer_is_built_from(spec: object) -> None:
    parts_of(spec).linear_fc1 = dict
    assert PARTS.linear_fc1 is dict
