"""Alarms over steps and starts: told once, in time, and again only when they come back."""

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.alarm_log import AlarmLog
from fakes.records import make_score, make_task

from asyncrl.observe.alarms.no_correct import ZeroReward
from asyncrl.observe.alarms.rule import NO_CORRECT, Alarm, Finding
from asyncrl.records import Finish, Score, Segment, Trajectory
from asyncrl.replay.group import Group
from asyncrl.run.metrics_file import Metrics, Row


def row(step: int, capped: float) -> Row:
    return {"step": step, "capped_share": capped, "correct_mean": 0.3}


def test_an_alarm_that_flickers_is_told_once() -> None:
    flickering = [row(step, 0.1 if step % 8 < 5 else 0.0) for step in range(1, 100)]
    log = AlarmLog()
    assert log.run(flickering) == [("capped_share", 3, True)]
    assert log.num_found == 1


def test_an_alarm_that_comes_back_is_told_again_and_is_not_the_first() -> None:
    rows = [row(step, 0.2 if step <= 20 or step > 60 else 0.0) for step in range(1, 81)]
    log = AlarmLog()
    assert [is_on for _, _, is_on in log.run(rows)] == [True, False, True]
    assert [event["is_first"] for event in log.rows] == [True, False, False]


def test_a_resumed_run_does_not_repeat_what_is_on_and_says_when_it_ends() -> None:
    before = AlarmLog()
    steps = [row(step, 0.2) for step in range(1, 21)]
    before.run(steps)
    events: list[Row] = [{"event": "ready"}, *({"event": "alarm", **fields} for fields in before.rows)]
    # The last checkpoint was at step 16.
    restored = Metrics(steps=steps[:16], events=events)
    after = AlarmLog(restored=restored)
    assert after.run([row(step, 0.2) for step in range(17, 30)]) == []
    ended = AlarmLog(restored=restored)
    ((name, _, is_on),) = ended.run([row(step, 0.0) for step in range(17, 40)])
    assert (name, is_on, ended.rows[0]["is_first"]) == ("capped_share", False, False)


def test_a_resumed_run_remembers_how_it_began() -> None:
    def entropies(first: int, last: int) -> list[dict[str, Any]]:
        return [{"step": n, "entropy": 1.2 * 0.8**n, "correct_mean": 0.3} for n in range(first, last)]

    evaluations: list[Row] = [{"step": 0, "greedy_accuracy": 0.3}]
    resumed = AlarmLog(restored=Metrics(steps=entropies(1, 16), evaluations=evaluations))
    assert resumed.run(entropies(16, 30)) == [("entropy_collapse", 21, True)]
    # Without that the first steps' entropy would be as low as the last.
    assert AlarmLog().run(entropies(16, 22)) == []


def test_memory_is_compared_within_a_start() -> None:
    def steps(first: int, last: int, gib: float) -> list[dict[str, Any]]:
        return [{"step": n, "trainer_memory_gib": gib} for n in range(first, last)]

    restored = Metrics(steps=steps(1, 30, 1.0))
    # Another layout or machine may need more from the start.
    assert AlarmLog(restored=restored).run(steps(30, 80, 2.0)) == []
    assert AlarmLog(restored=restored).run(steps(30, 60, 2.0) + steps(60, 80, 4.0)) == [
        ("memory_growth", 62, True)
    ]


def test_a_step_that_is_trained_again_counts_once() -> None:
    rows = [row(step, 0.2) for step in (1, 2, 2, 2, 2)]
    assert AlarmLog().run(rows) == []
    assert AlarmLog().run([*rows, row(3, 0.2)]) == [("capped_share", 3, True)]


def test_that_nothing_is_correct_is_told_from_elsewhere_and_ends_with_the_first_correct_response() -> None:
    log = AlarmLog()
    finding = Finding(5, 5, "no response was correct in 5 steps")
    log.hear(Alarm(*NO_CORRECT, step, finding) for step in (5, 6))
    log.run({"step": step, "correct_mean": mean} for step, mean in ((6, 0.0), (7, 0.01), (8, 0.01)))
    assert [(e["alarm"], e["step"], e["is_on"]) for e in log.rows] == [
        ("no_correct", 5, True),
        ("no_correct", 7, False),
    ]


def test_dropped_groups_begin_an_alarm_before_any_step_and_a_step_ends_it() -> None:
    log = AlarmLog()

    def drops(num: int, *, right: int = 0) -> Row:
        return {"step": 1, "num_dropped": num, "no_signal": num, "all_wrong": num - right, "all_right": right}

    # Ten groups make a batch: fewer than nine batches are less than 90% of what is generated.
    log.hear(log.watch.dropped(drops(80)))
    assert log.rows == []
    log.hear(log.watch.dropped(drops(160, right=20)))
    log.hear(log.watch.dropped(drops(320, right=20)))
    # Of the step that waits, not of one that has ended.
    assert [(event["alarm"], event["step"]) for event in log.rows] == [("dead_groups", 1)]
    assert "has dropped 160 groups since the last batch and step 1 still waits: 140 were" in log.texts[0]
    log.run({"step": step, "no_signal_token_share": 0.5, "correct_mean": 0.3} for step in range(1, 15))
    assert [(event["alarm"], event["is_on"]) for event in log.rows] == [
        ("dead_groups", True),
        ("dead_groups", False),
    ]


def test_tasks_that_are_solved_are_dropped_without_an_alarm() -> None:
    log = AlarmLog()
    solved = {"step": 1, "num_dropped": 400, "no_signal": 400, "all_wrong": 0, "all_right": 400}
    log.hear(log.watch.dropped(solved))
    assert log.rows == []


ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_few_effective_sequences_are_told_before_the_reward_falls_to_half() -> None:
    command = [sys.executable, str(ROOT / "tests" / "benchmarks" / "collapse.py"), "--seeds", "0,1,2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=1700, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\| (\d) \| [\d.]+ \| (\d+) \| (\d+) \| (\d+) \|$", done.stdout, re.MULTILINE)
    assert [seed for seed, *_ in rows] == ["0", "1", "2"], done.stdout
    for _, _, of_batches, of_samples in rows:
        # What the policy samples falls first; a step learns from it eight steps later.
        assert int(of_batches) >= int(of_samples) > 0, done.stdout


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
        """The alarms about these batches, one after the other."""
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
