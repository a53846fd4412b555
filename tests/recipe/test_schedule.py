"""Learning rates step by step: torch's own schedulers say the same."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from asyncrl.errors import InputError
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import parse_recipe

PEAK = 3e-4


def make_recipe(trainer: dict[str, Any], **sections: Any) -> Recipe:
    raw = {"name": "t", "model": {"path": "m"}, "data": {"train": "d", "heldout": "h"}}
    return parse_recipe({**raw, "trainer": {"learning_rate": PEAK, **trainer}, **sections}, source="test")


def rates_of_torch(kind: str, *, warmup: int, end: int, decay: int, share: float, count: int) -> list[float]:
    """Rates of `count` optimizer steps by torch's schedulers, one after the other."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    parts: list[tuple[int, LRScheduler]] = []
    if warmup:
        rise = LinearLR(optimizer, 1 / warmup, 1.0, total_iters=max(1, warmup - 1))
        parts.append((warmup, rise))
    if kind == "constant":
        parts.append((count, ConstantLR(optimizer, 1.0)))
    elif kind == "wsd":
        parts.append((end - warmup - decay, ConstantLR(optimizer, 1.0)))
    if kind in ("linear", "wsd"):
        fall = decay if kind == "wsd" else end - warmup
        parts.append((count, LinearLR(optimizer, 1.0, share, total_iters=fall)))
    elif kind == "cosine":
        parts.append((count, CosineAnnealingLR(optimizer, end - warmup, eta_min=share * PEAK)))
    parts = [(length, scheduler) for length, scheduler in parts if length]
    milestones = [sum(length for length, _ in parts[: i + 1]) for i in range(len(parts) - 1)]
    scheduler = SequentialLR(optimizer, [part for _, part in parts], milestones)
    found = []
    for _ in range(count):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")
@given(
    kind=st.sampled_from(["constant", "linear", "cosine", "wsd"]),
    warmup=st.integers(0, 6),
    stable=st.integers(0, 6),
    decay=st.integers(1, 9),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_each_schedule_is_that_of_torch_step_by_step(
    kind: str, warmup: int, stable: int, decay: int, share: float
):
    end = warmup + decay + (stable if kind == "wsd" else 0)
    numbers = {} if kind == "constant" else {"min_share": share}
    if kind == "wsd":
        numbers |= {"decay_steps": decay}
    chosen = {"name": kind, **numbers}
    trainer = {"learning_rate_schedule": chosen, "warmup_steps": warmup, "num_steps": end}
    schedule = make_recipe(trainer).policy_schedule()
    # torch's cosine rises again behind its end, where ours stays at the floor.
    count = end + (1 if kind == "cosine" else 4)
    wanted = rates_of_torch(kind, warmup=warmup, end=end, decay=decay, share=share, count=count)
    assert [schedule.rate(version) for version in range(count)] == pytest.approx(wanted, rel=1e-9, abs=1e-15)


def test_a_warm_up_and_a_constant_rate_are_what_they_were_to_the_last_digit():
    schedule = make_recipe({"warmup_steps": 3}).policy_schedule()
    assert [schedule.rate(version) for version in range(5)] == [PEAK * 1 / 3, PEAK * 2 / 3, PEAK, PEAK, PEAK]


def test_the_values_of_a_short_run_by_hand():
    def rates(**trainer: Any) -> list[float]:
        schedule = make_recipe(
            {"learning_rate": 1.0, "num_steps": 6, "warmup_steps": 2, **trainer}
        ).policy_schedule()
        return [schedule.rate(version) for version in range(7)]

    assert rates(learning_rate_schedule="linear") == [0.5, 1, 1, 0.75, 0.5, 0.25, 0]
    floored = rates(learning_rate_schedule={"name": "linear", "min_share": 0.2})
    assert floored == pytest.approx([0.5, 1, 1, 0.8, 0.6, 0.4, 0.2])
    assert rates(learning_rate_schedule="cosine")[4] == pytest.approx(0.5)
    assert rates(learning_rate_schedule={"name": "wsd", "decay_steps": 2}) == [0.5, 1, 1, 1, 1, 0.5, 0]
    assert rates(learning_rate_schedule={"name": "linear", "steps": 4}) == [0.5, 1, 1, 0.5, 0, 0, 0]


def test_optimizer_steps_are_counted_by_each_model_for_itself():
    recipe = make_recipe(
        {
            "schedule_unit": "optimizer_steps",
            "warmup_steps": 24,
            "optimizer_steps_per_batch": 2,
            "num_steps": 50,
        },
        algorithm={"advantage": "gae"},
        critic={"learning_rate": PEAK, "optimizer_steps_per_batch": 4, "warmup_steps": 5},
        rollout={"groups_per_batch": 8},
    )
    critic, policy = recipe.critic_schedule(), recipe.policy_schedule()
    assert [critic.rate(1, part) for part in range(4)] == pytest.approx([PEAK * n / 24 for n in (5, 6, 7, 8)])
    assert critic.rate(5, 3) == critic.rate(6, 0) == PEAK
    # Five steps of four per batch: two batches train the critic alone.
    assert recipe.critic_warmup_batches() == policy.first_version == 2
    assert [policy.rate(2, 0), policy.rate(2, 1), policy.rate(3, 0)] == pytest.approx(
        [PEAK * n / 24 for n in (1, 2, 3)]
    )


def test_a_fall_ends_with_the_run_whatever_its_unit_and_the_critics_warm_up():
    for unit, part in (("batches", 0), ("optimizer_steps", 1)):
        trainer = {"schedule_unit": unit, "learning_rate_schedule": "linear", "optimizer_steps_per_batch": 2}
        recipe = make_recipe(
            {**trainer, "num_steps": 10}, algorithm={"advantage": "gae"}, critic={"warmup_steps": 4}
        )
        assert recipe.policy_schedule().rate(9, part) > 0 == recipe.policy_schedule().rate(10, 0)
        assert recipe.critic_schedule().rate(9, part) > 0 == recipe.critic_schedule().rate(10, 0)


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        (
            {"learning_rate_schedule": {"decay_steps": 3}},
            "decay_steps is 3, but nothing reads it: set trainer.learning_rate_schedule to .name: wsd,",
        ),
        ({"learning_rate_schedule": {"name": "linear", "decay_steps": 3}}, "nothing reads it"),
        ({"learning_rate_schedule": {"steps": 9}}, "belongs to linear, cosine, wsd"),
        ({"learning_rate_schedule": {"min_share": 0.1}}, "min_share is 0.1, but nothing reads it"),
        (
            {"learning_rate_schedule": "cosine", "warmup_steps": 9, "num_steps": 9},
            "cosine ends at step 9 .* trainer.warmup_steps is 9: the rate has no room to fall",
        ),
        (
            {"learning_rate_schedule": {"name": "wsd", "decay_steps": 5}, "warmup_steps": 5, "num_steps": 9},
            "its fall takes 5.* Lower trainer.warmup_steps or trainer.learning_rate_schedule.decay_steps",
        ),
        ({"learning_rate_schedule": "cosin"}, "'constant', 'linear', 'cosine', 'wsd'. Did you mean cosine"),
    ],
)
def test_keys_that_do_nothing_and_falls_without_room_are_refused(trainer: dict[str, Any], words: str):
    with pytest.raises(InputError, match=words):
        make_recipe(trainer)
