"""Which numbers of processes go together."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.recipe import Trainer


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


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"num_processes": 2, "parallel": {"tensor": 2}},
            r"parallel\.tensor is 2 but trainer\.optimizer is muon",
        ),
        (
            {"num_processes": 2, "parallel": {"expert": 2}},
            r"parallel\.expert is 2 but trainer\.optimizer is muon",
        ),
        (
            {"parallel": {"distributed_optimizer": True}},
            r"distributed_optimizer is true but .* Muon steps on whole matrices\. Set "
            r".*distributed_optimizer to false, or trainer\.optimizer to adam",
        ),
        (
            {"exp_avg_dtype": "bfloat16"},
            r"exp_avg_dtype is bfloat16 .* only a distributed optimizer has that",
        ),
        (
            {"optimizer_cpu_offload": True},
            r"trainer\.optimizer_cpu_offload is true but trainer\.optimizer is muon",
        ),
    ],
)
def test_what_muon_does_not_work_with_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_recipe(Path("m"), trainer={"optimizer": "muon"} | keys)


@pytest.mark.parametrize("keys", [{"learning_rate": 1e-3}, {"momentum": 0.9}])
def test_keys_of_muon_without_it_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"nothing reads it: set trainer\.optimizer to \{name: muon, "):
        make_recipe(Path("m"), trainer={"optimizer": keys})


def test_muon_has_the_rate_of_adam_or_its_own() -> None:
    assert make_recipe(Path("m"), trainer={"optimizer": "muon"}).policy_schedule().muon_share == 1.0
    keys = {"optimizer": {"name": "muon", "learning_rate": 4e-6}, "learning_rate": 1e-6}
    recipe = make_recipe(Path("m"), trainer=keys, critic={"learning_rate": 1e-5})
    for schedule in (recipe.policy_schedule(), recipe.critic_schedule()):
        assert schedule.muon_share == pytest.approx(4.0)


@pytest.mark.parametrize(("tokens", "scale"), [(2048, 8.0), (3000, 4.0), (16384, 1.0), (2**26, 2.0**-10)])
def test_the_default_loss_scale_is_smaller_for_larger_micro_batches(tokens: int, scale: float) -> None:
    assert Trainer(tokens_per_micro_batch=tokens).first_loss_scale() == scale
    assert Trainer(tokens_per_micro_batch=tokens, initial_loss_scale=64.0).first_loss_scale() == 64.0
