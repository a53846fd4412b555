"""The hint where nothing is ever right."""

import dataclasses
from collections.abc import Callable, Sequence

import pytest
from fakes.records import make_score, make_task

from asyncrl.observe.alarms.no_correct import ZeroReward
from asyncrl.observe.alarms.rule import Alarm
from asyncrl.records import Finish, Score, Segment, Trajectory
from asyncrl.replay.group import Group

NUM_STEPS = 5

NO_BOX = dataclasses.replace(make_score(0.0), outcome="no_answer", detail="no \\boxed{} in the response")


def group_of(*scores: Score, finish: Finish = Finish.STOP, is_greedy: bool = False) -> Group:
    group = Group(0, make_task(), 0, [])
    for index, score in enumerate(scores):
        segments = [Segment(0, [1, 2, 3], [-1.0] * 3)]
        group.trajectories.append(Trajectory(str(index), (1,), segments, finish, is_greedy=is_greedy))
        group.scores[str(index)] = score
    return group


def decode(tokens: Sequence[int]) -> str:
    return "so the answer is " + "-".join(map(str, tokens))


@pytest.fixture
def hints() -> Callable[..., list[str]]:
    def give(*batches: list[Group]) -> list[str]:
        """What is said of these batches, one after the other."""
        told: list[Alarm] = []
        watch = ZeroReward(decode, told.append, max_new_tokens=64, num_steps=NUM_STEPS, groups_per_batch=2)
        for step, batch in enumerate(batches, start=1):
            watch.taken(batch, step)
        return [alarm.words() for alarm in told]

    return give


def test_after_several_steps_without_a_right_response_the_hint_says_what_was_looked_for_and_found(
    hints: Callable[..., list[str]],
) -> None:
    cut = group_of(NO_BOX, NO_BOX, make_score(0.0), make_score(0.0), finish=Finish.LENGTH)
    batch = [cut, group_of(NO_BOX, NO_BOX, NO_BOX, NO_BOX)]
    (hint,) = hints(*[batch] * (NUM_STEPS + 3))
    # 6 of 8 had no box, 2 were wrong, 4 of 8 were cut.
    assert "75% no answer (no \\boxed{} in the response), 25% wrong; 50% were cut" in hint
    assert "rollout.max_new_tokens (64)" in hint
    assert 'The verifier "math" looks for the last closed \\boxed{...} after the last </think>.' in hint
    assert "end with 'so the answer is 1-2-3', " in hint


def test_it_waits_for_several_steps_in_a_row_and_comes_again_after_something_was_right(
    hints: Callable[..., list[str]],
) -> None:
    wrong, right = [group_of(NO_BOX)], [group_of(NO_BOX, make_score(0.5))]
    assert hints(*[wrong] * (NUM_STEPS - 1)) == []
    assert hints(*[wrong] * (NUM_STEPS - 1), right, *[wrong] * (NUM_STEPS - 1)) == []
    assert len(hints(*[wrong] * NUM_STEPS, right, *[wrong] * NUM_STEPS)) == 2


def test_a_step_with_nothing_graded_puts_the_hint_off_and_does_not_lose_it(
    hints: Callable[..., list[str]],
) -> None:
    wrong, faulty = [group_of(NO_BOX)], [Group(0, make_task(), 0, [])]
    assert hints(*[wrong] * (NUM_STEPS - 1), faulty) == []
    (hint,) = hints(*[wrong] * (NUM_STEPS - 1), faulty, *[wrong] * 3)
    assert f"in {NUM_STEPS + 1} steps" in hint


@pytest.mark.parametrize("between", [None, "wrong", "right"])
def test_groups_that_are_dropped_count_as_steps_until_one_that_is_ready_has_a_right_response(
    between: str | None,
) -> None:
    alarms: list[Alarm] = []
    watch = ZeroReward(decode, alarms.append, max_new_tokens=64, num_steps=NUM_STEPS, groups_per_batch=2)
    ready = {"wrong": group_of(NO_BOX, NO_BOX), "right": group_of(NO_BOX, make_score(1.0))}
    for number in range(2 * NUM_STEPS):
        if number % 2 and between is not None:
            watch.ended(ready[between], 1, is_dropped=False)
        watch.ended(group_of(NO_BOX, NO_BOX), 1, is_dropped=True)
    told = [alarm for alarm in alarms if "(5 of them 10 groups that were dropped)" in alarm.words()]
    assert len(told) == (between != "right")


def test_greedy_baselines_and_faults_are_no_right_responses(hints: Callable[..., list[str]]) -> None:
    greedy = group_of(make_score(1.0), is_greedy=True)
    assert len(hints(*[[greedy, group_of(make_score(None), NO_BOX)]] * NUM_STEPS)) == 1
