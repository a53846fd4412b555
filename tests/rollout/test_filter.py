"""Dynamic sampling: by raw correctness, and never without end."""

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fakes.completions import completion_on
from fakes.records import correctness_differs, finish, generate, make_queue, make_score, make_task

from asyncrl.algorithms.advantages import ADVANTAGES, GroupRewards, find_advantage, group_advantages
from asyncrl.journal.writer import Journal
from asyncrl.recipe import Algorithm
from asyncrl.records import DropReason, Finish, RowVisit, Score, Segment, Task, Trajectory
from asyncrl.replay.group import Group, GroupState
from asyncrl.replay.queue import ReplayQueue
from asyncrl.replay.settings import QueueSettings
from asyncrl.rollout.filter import AdaptiveGroups, SignalFilter, group_signal
from asyncrl.tasks.pass_rates import PassRates


def make_group(*scores: Score) -> Group:
    return Group(0, make_task(), 0, [], scores={str(n): score for n, score in enumerate(scores)})


def test_a_group_without_signal_is_held_back_only_when_the_recipe_says_so() -> None:
    flat = make_group(make_score(1.0), make_score(1.0))
    assert SignalFilter(is_on=False, max_in_a_row=9, has_signal=correctness_differs).lets_through(flat)
    assert not SignalFilter(is_on=True, max_in_a_row=9, has_signal=correctness_differs).lets_through(flat)
    assert SignalFilter(is_on=True, max_in_a_row=9, has_signal=correctness_differs).lets_through(
        make_group(make_score(1.0), make_score(0.0))
    )


def group_of(*correctness: float, greedy: float | None = None, shaping: float = 0.0) -> Group:
    """One trajectory each, of 3, 4, ... tokens; rewards are shaped by their number."""
    group = Group(0, make_task(), 0, [])
    everyone = [*correctness, *([] if greedy is None else [greedy])]
    for i, right in enumerate(everyone):
        trajectory = Trajectory(str(i), (1,), is_greedy=i == len(correctness))
        trajectory.segments.append(Segment(0, [1] * (i + 3), [-0.5] * (i + 3)))
        group.trajectories.append(trajectory)
        group.scores[str(i)] = Score("correct", right, right - shaping * i, None, "", 0.0)
    return group


SIGNALS = {
    # advantage: all right, all wrong, one of four right, and one wrong of four
    "grpo": (False, False, True, True),
    "dr_grpo": (False, False, True, True),
    "rloo": (False, False, True, True),
    "opo": (False, False, True, True),
    "reinforce_pp_baseline": (False, False, True, True),
    # Of each three of them one is right.
    "pass_at_k_training": (False, False, True, False),
    "gdpo": (False, False, True, True),
    "max_rl": (False, False, True, True),
    # Its greedy answer is right: wrong samples have an advantage, right ones none.
    "remax": (False, True, True, True),
    # With k = 3 and one wrong of four each three hold a second right answer: nobody adds anything.
    "pass_at_k": (False, False, True, False),
    "w_reinforce": (True, True, True, True),
    "asym_re": (True, True, True, True),
    "reinforce_pp": (True, True, True, True),
    "batch_mean": (True, True, True, True),
    "gae": (True, True, True, True),
}


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_the_advantage_says_which_groups_have_a_gradient(name: str) -> None:
    algorithm = Algorithm(advantage={"name": name, "k": 3} if name.startswith("pass_at_k") else name)
    has_signal = group_signal(ADVANTAGES[name], algorithm)
    greedy = 1.0 if algorithm.needs_greedy() else None
    groups = ([1.0] * 4, [0.0] * 4, [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0])
    found = tuple(has_signal(group_of(*rewards, greedy=greedy)) for rewards in groups)
    assert found == SIGNALS[name]
    for rewards, has_one in zip(groups, found, strict=True):
        filtered = SignalFilter(is_on=True, max_in_a_row=9, has_signal=has_signal)
        assert filtered.lets_through(group_of(*rewards, greedy=greedy)) == has_one


def test_shaping_gives_no_group_a_gradient_that_its_correctness_does_not() -> None:
    has_signal = group_signal(ADVANTAGES["grpo"], Algorithm())
    assert not has_signal(group_of(1.0, 1.0, 1.0, shaping=0.1))


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "opo", "pass_at_k"])
def test_correctness_one_rounding_apart_is_no_signal(name: str) -> None:
    has_signal = group_signal(
        ADVANTAGES[name],
        Algorithm(advantage={"name": name, "k": 2} if name.startswith("pass_at_k") else name),
    )
    assert not has_signal(group_of(1.0, 0.99999, 1.0))
    assert not has_signal(group_of(0.5, 0.4999999999999999, 0.5))
    assert has_signal(group_of(1.0, 0.99, 1.0))


def test_a_fault_is_no_answer_to_compare_with() -> None:
    has_signal = group_signal(ADVANTAGES["grpo"], Algorithm())
    group = group_of(1.0, 0.0, 0.0)
    group.scores["1"] = group.scores["2"] = make_score(None)
    assert not has_signal(group)


def test_after_many_in_a_row_one_is_let_through_so_that_the_run_continues() -> None:
    found = SignalFilter(is_on=True, max_in_a_row=2, has_signal=correctness_differs)
    flat = make_group(make_score(0.0), make_score(0.0))
    assert [found.lets_through(flat) for _ in range(6)] == [False, False, True, False, False, True]


def test_a_dropped_group_makes_room_and_its_tokens_are_in_the_books(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, batch=1, staleness=0, steps=1)
    queue.announce(0)
    flat = queue.admit(make_task(1))
    generate(queue, flat, version=0, num_tokens=3)
    queue.drop(flat, DropReason.NO_SIGNAL)
    finish(queue, queue.admit(make_task(2)), version=0, num_tokens=4)
    assert queue.take(0) is not None
    queue.commit(1, "folder")
    table = queue.conservation()
    # 2 trajectories each
    assert (table["generated"], table["trained"], table["dropped: no_signal"]) == (14, 8, 6)


PILOT, WHOLE = 2, 6
SETTINGS = QueueSettings(
    groups_per_batch=1, samples_per_group=WHOLE, pilot_samples=PILOT, max_staleness=0, num_steps=9
)


class Model:
    """Generates and grades at once; `rewards` by sample, and it breaks off after `limit` trajectories."""

    def __init__(self, queue: ReplayQueue, rewards: Sequence[float | None], limit: int = 99) -> None:
        self.queue = queue
        self.rewards = rewards
        self.limit = limit
        self.generated: list[int] = []

    async def run(self, group: Group) -> AsyncIterator[Trajectory]:
        for sample, trajectory in enumerate(group.trajectories):
            if trajectory.finish is None and len(self.generated) < self.limit:
                self.generated.append(sample)
                self.queue.append(group, trajectory, [Segment(0, [sample], [-0.5])], Finish.STOP)
                yield trajectory

    async def grade(
        self, task: Task, response: str, conversation: object, *, num_turns: int | None = None
    ) -> Score:
        score = make_score(self.rewards[int(response)])
        return (
            score if self.penalty is None else dataclasses.replace(score, reward=self.penalty[int(response)])
        )

    penalty: Sequence[float] | None = None
    """Rewards after shaping, by sample."""

    def limit_sampled_tokens(self, trajectory: Trajectory) -> int:
        return 10


def new_queue(folder: Path) -> ReplayQueue:
    return ReplayQueue(Journal(folder / "journal.sqlite"), SETTINGS, has_signal=correctness_differs)


def complete(
    queue: ReplayQueue, group: Group, model: Model, min_chance: float = 0.5, rates: PassRates | None = None
) -> None:
    algorithm = Algorithm(advantage="dr_grpo")
    known = rates or PassRates(1, half_life=10)
    adaptive = AdaptiveGroups(WHOLE, min_chance, known, lambda task: 0, queue.reached_version)
    codec = SimpleNamespace(decode=lambda tokens: str(tokens[0]))
    completion = completion_on(
        *(queue, model, model, codec, algorithm, correctness_differs), extends=adaptive.extends
    )
    asyncio.run(completion.run(group))


@pytest.mark.parametrize(
    ("pilot", "min_chance", "is_extended"),
    [
        ((1.0, 0.0), 1.0, True),
        # Undecided: scores between right and wrong, and no verdict at all.
        ((0.5, 0.5), 1.0, True),
        ((None, None), 1.0, True),
        # With nothing known of rows, 4 more answers of the same kind come with chance 3 / 7.
        ((0.0, 0.0), 0.56, True),
        ((0.0, 0.0), 0.58, False),
        ((1.0, 1.0), 0.58, False),
        # One of the two has no verdict: 2 / 6.
        ((None, 1.0), 0.65, True),
        ((1.0, 1.0), 0.0, True),
    ],
)
def test_a_pilot_is_extended_where_two_rewards_are_likely(
    tmp_path: Path, pilot: tuple[float | None, ...], min_chance: float, is_extended: bool
) -> None:
    queue = new_queue(tmp_path)
    queue.announce(0)
    group = queue.admit(make_task())
    assert len(group.trajectories) == PILOT
    model = Model(queue, [*pilot, 1.0, 0.0, 1.0, 0.0])
    complete(queue, group, model, min_chance)
    assert len(group.trajectories) == len(model.generated) == (WHOLE if is_extended else PILOT)
    assert group.state is GroupState.READY
    if not is_extended:
        assert set(group.advantages.values()) == {0.0}
    assert queue.take(0) == [group]
    queue.journal.barrier_blocking()
    ((count,),) = queue.journal.read("SELECT count(*) FROM trajectories")
    assert count == len(group.trajectories)
    table = queue.conservation()
    num_faults = sum(reward is None for reward in pilot)
    assert (table["generated"], table["taken"]) == (count, count - num_faults)


def test_a_pilot_that_stops_has_no_gradient_whatever_shaped_its_rewards(tmp_path: Path) -> None:
    for number, (penalty, is_extended) in enumerate((([1.0, 0.5], True), ([0.5, 0.5], False))):
        (folder := tmp_path / str(number)).mkdir()
        queue = new_queue(folder)
        queue.announce(0)
        group, model = queue.admit(make_task()), Model(queue, [1.0] * WHOLE)
        model.penalty = [*penalty, *[0.5] * (WHOLE - PILOT)]
        complete(queue, group, model, 1.0)
        # Both are right, and the longer one earns less: with a baseline of the mean 0.25 and -0.25.
        assert (len(group.trajectories) == WHOLE) is is_extended
        assert any(group.advantages.values()) is is_extended


def test_the_record_of_the_row_decides(tmp_path: Path) -> None:
    for number, (correct, is_extended) in enumerate(((0.0, False), (0.5, True))):
        folder = tmp_path / str(number)
        folder.mkdir()
        queue, rates = new_queue(folder), PassRates(1, half_life=10)
        rates.add(0, RowVisit(0, 0, 16, correct))
        queue.announce(0)
        group = queue.admit(make_task())
        complete(queue, group, Model(queue, [0.0] * WHOLE), 0.5, rates)
        assert (len(group.trajectories) == WHOLE) is is_extended


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_a_run_that_stops_in_the_middle_continues_its_group(tmp_path: Path, limit: int) -> None:
    queue = new_queue(tmp_path)
    queue.announce(0)
    group = queue.admit(make_task())
    rewards = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    complete(queue, group, Model(queue, rewards, limit))
    assert group.state is GroupState.OPEN and len(group.trajectories) == (PILOT if limit == 1 else WHOLE)
    queue.journal.close()
    again = new_queue(tmp_path)
    again.restore(lambda task_id, prompt: make_task())
    again.announce(0)
    (group,) = again.live.values()
    model = Model(again, rewards)
    complete(again, group, model)
    assert model.generated == list(range(limit, WHOLE))
    assert [group.scores[t.trajectory_id].reward for t in group.trajectories] == rewards
    assert group.state is GroupState.READY


def kept_weight(s: float, *, pilot: int, whole: int, stops_wrong: bool, stops_right: bool) -> float:
    """The formula of docs/algorithms.md."""
    more = whole - pilot

    def lost(s: float) -> float:
        return float((1 - s) ** (pilot - 1) * more * (whole - 1 + s - more * s) / (whole * (whole - 1)))

    return 1 - stops_wrong * lost(s) - stops_right * lost(1 - s)


@pytest.mark.parametrize("s", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize(("pilot", "whole"), [(2, 8), (4, 16)])
@pytest.mark.parametrize("min_chance", [0.0, 0.5, 1.0])
def test_a_row_keeps_the_direction_of_its_gradient_and_its_weight_is_that_of_the_formula(
    s: float, pilot: int, whole: int, min_chance: float
) -> None:
    """The policy answers right with chance s = sigmoid(theta): d log p / d theta is 1 - s or -s, and the
    gradient of the mean reward s (1 - s). Groups are stopped by the rule itself, advantages are rloo's."""
    random, algorithm = np.random.default_rng(0), Algorithm(advantage="rloo")
    advantage = find_advantage(algorithm)
    adaptive = AdaptiveGroups(whole, min_chance, PassRates(1, half_life=10), lambda task: 0, lambda: 0)
    num_groups, total, squares, num_tokens, num_stopped = 6000, 0.0, 0.0, 0, {0.0: 0, 1.0: 0}
    for _ in range(num_groups):
        rewards = [float(reward) for reward in random.random(whole) < s]
        scores = {str(i): make_score(reward) for i, reward in enumerate(rewards[:pilot])}
        trajectories = [Trajectory(str(i), (1,)) for i in range(pilot)]
        if adaptive.extends(Group(0, make_task(), 0, trajectories, scores=scores), teaches=False):
            found = group_advantages(
                GroupRewards(rewards, [1] * whole, None, min_size=2), advantage, algorithm
            )
            gradient = sum(a * (r - s) for a, r in zip(found, rewards, strict=True)) / whole
            num_tokens += whole
        else:
            assert len(set(rewards[:pilot])) == 1
            num_stopped[rewards[0]] += 1
            gradient = 0.0
            num_tokens += pilot
        total, squares = total + gradient, squares + gradient**2
    mean = total / num_groups
    error = ((squares / num_groups - mean**2) / num_groups) ** 0.5
    weight = kept_weight(
        s, pilot=pilot, whole=whole, stops_wrong=num_stopped[0.0] > 0, stops_right=num_stopped[1.0] > 0
    )
    assert mean == pytest.approx(weight * s * (1 - s), abs=4 * error + 1e-9)
    assert pilot / whole <= weight <= 1.0
    # Within a row nothing is gained: it loses at least as much of its weight as of its tokens.
    assert num_tokens / (num_groups * whole) >= weight - 0.02


@pytest.mark.parametrize(("pilot", "whole"), [(2, 8), (2, 16), (4, 16)])
@pytest.mark.parametrize("record", [(4, 0.75), (16, 0.9375), (1, 0.0)])
def test_the_least_waste_is_at_the_chance_that_the_docs_name(
    pilot: int, whole: int, record: tuple[int, float]
) -> None:
    """By the exact distribution of the pilot: u is the share of the trajectories in mixed groups."""
    rates = PassRates(1, half_life=10)
    rates.add(0, RowVisit(0, 0, *record))
    (a,), (b,) = rates.posterior(0)

    def useful(min_chance: float) -> float:
        spent = taught = 0.0
        for right in range(pilot + 1):
            ways = math.comb(pilot, right)
            likely = ways * math.exp(log_beta(a + right, b + pilot - right) - log_beta(a, b))
            chance = 1.0
            if right in (0, pilot):
                counts = {"num_right": right, "num_wrong": pilot - right, "num_more": whole - pilot}
                chance = rates.mixed_chance(0, 0, **counts)
            is_extended = chance >= min_chance
            spent += likely * (whole if is_extended else pilot)
            taught += likely * chance * whole * is_extended
        return taught / spent

    most = max(useful(step / 200) for step in range(201))
    assert useful(most * (1 - pilot / whole)) == pytest.approx(most)


def log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
