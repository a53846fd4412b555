"""Faults of verifiers: told once per cause, and a verifier that gives no verdict any more ends the run."""

from pathlib import Path

import pytest
from fakes.clock import Clock
from fakes.controllers import controller_on, make_recipe
from fakes.engine import FakeEngine
from fakes.records import generate, make_queue, make_task

from asyncrl.journal import statements
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.writer import Journal
from asyncrl.observe.metrics.mishaps import group_faults
from asyncrl.recipe import Verifying
from asyncrl.records import Score, Task, VerifierSpec
from asyncrl.rollout.fault_limit import FaultWatch, VerdictWaits, VerifierFailed, retried_fault
from asyncrl.rollout.grade import Grader
from asyncrl.system.plugins import MIN_SECONDS, cause_of
from asyncrl.tasks.verifier_cache import VerifierCache


def test_faults_without_a_verdict_between_end_the_run_with_the_verifiers_own_error() -> None:
    clock = Clock()
    faults, task = FaultWatch(3, clock=clock), make_task(4)
    for _ in range(3):
        faults.failed(task, "the verifier raised KeyError: 'a' (v.py:3)")
    clock.seconds = MIN_SECONDS
    with pytest.raises(VerifierFailed, match=r"4 times in a row.*train:4: the verifier raised KeyError"):
        faults.failed(task, "the verifier raised KeyError: 'a' (v.py:3)")


def test_one_verdict_between_or_a_short_outage_ends_nothing() -> None:
    clock = Clock()
    faults, task = FaultWatch(3, clock=clock), make_task()
    for _ in range(100):
        faults.failed(task, "away")
    clock.seconds = MIN_SECONDS
    faults.answered(task)
    for _ in range(2):
        clock.seconds += MIN_SECONDS
        faults.failed(task, "away")
    # Verdicts of another verifier say nothing about this one.
    faults.answered(Task("train:9", "p", (1,), "", VerifierSpec("exact")))
    with pytest.raises(VerifierFailed):
        faults.failed(task, "away")


def test_the_first_fault_of_each_cause_is_told_with_its_row_and_last_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = FaultWatch(3)
    faults.gave_up(make_task(1), "the verifier raised KeyError: 'a' (v.py:3)")
    faults.gave_up(make_task(2), "the verifier raised KeyError: 'b' (v.py:3)")
    faults.gave_up(make_task(3), "the verifier raised TypeError: b (v.py:3)")
    first, second = caplog.messages
    assert "train:1" in first and "KeyError: 'a' (v.py:3)" in first
    assert "train:3" in second and "TypeError: b (v.py:3)" in second


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("no answer in 10.1 s with 0.02 s of CPU", "no answer in 9.7 s with 0.1 s of CPU", True),
        ("http://a:1/x gave no verdict", "http://a:2/x gave no verdict", True),
        ("the verifier raised E: 1\n(2) (v.py:3)", "the verifier raised E: other (v.py:3)", True),
        ("the verifier raised E: 1 (v.py:3)", "the verifier raised E: 1 (v.py:4)", False),
        ("the worker was ended by SIGKILL", "the worker was ended by SIGTERM", False),
        (
            "the worker ended by itself, with exit code 1",
            "the worker ended by itself, with exit code 12",
            False,
        ),
    ],
)
def test_a_cause_is_what_stays_when_the_response_changes(first: str, second: str, is_same: bool) -> None:
    assert (cause_of(first) == cause_of(second)) is is_same


def test_faults_are_grouped_by_cause_the_most_frequent_first() -> None:
    found = group_faults(
        [("train:1", "late by 1 s", 2), ("train:2", "died", 3), ("train:3", "late by 2 s", 5)]
    )
    assert [(f.cause, f.num_verdicts, f.task_id) for f in found] == [
        ("late by N s", 7, "train:1"),
        ("died", 3, "train:2"),
    ]
    many = group_faults((f"train:{n}", "x" * n, 1) for n in range(1, 20))
    assert len(many) == 9 and sum(f.num_verdicts for f in many) == 19


async def test_a_verifier_that_always_raises_is_told_and_retried_and_has_no_score(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "v.py").write_text(
        "class V:\n    def parse_reference(self, raw): return raw\n"
        "    def verify(self, response, reference):\n        return response['x']\n"
    )
    task = Task("train:7", "p", (1,), "", VerifierSpec("./v.py:V"))
    async with Grader(Verifying(), VerifierCache(tmp_path), max_fault_retries=1) as grader:
        score = await grader.grade(task, "r")
        assert score.outcome == "fault"
        assert "Traceback" in score.trace and "return response['x']" in score.trace
        # The retry too.
        assert grader.outcomes == {("./v.py:V", "fault"): 2}
    (said,) = caplog.messages
    assert "train:7" in said and "TypeError: string indices" in said and "v.py:4)" in said


def test_of_each_cause_the_first_traceback_is_journaled(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, samples=4)
    queue.announce(0)
    group = queue.admit(make_task())
    generate(queue, group, version=0)
    raised = "the verifier raised {} (v.py:{})"
    for trajectory, (detail, trace) in zip(
        group.trajectories,
        [
            (raised.format("KeyError: 'a'", 3), "first"),
            (raised.format("KeyError: 'b'", 3), "second"),
            (raised.format("KeyError: 'b'", 4), "third"),
            ("the worker was ended by SIGKILL", ""),
        ],
        strict=True,
    ):
        queue.score(group, trajectory, Score("fault", None, None, None, detail, 0.0, trace=trace), "")
    queue.journal.barrier_blocking()
    reader = JournalReader(tmp_path / "journal.sqlite")
    assert reader.fault_traces() == {
        "KeyError at v.py:3": {"trajectory_id": "00000000-00", "trace": "first"},
        "KeyError at v.py:4": {"trajectory_id": "00000000-02", "trace": "third"},
    }
    assert [count for _, _, count in reader.faults()] == [1, 1, 1, 1]


def test_a_fault_whose_retry_gave_a_verdict_is_told_once_per_cause(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultWatch(3)
    for number in range(3):
        faults.retried(make_task(number), f"the verifier raised KeyError: '{number}' (v.py:3)")
    faults.gave_up(make_task(3), "the verifier raised KeyError: '3' (v.py:3)")
    retried, gave_up = caplog.messages
    assert "train:0" in retried and "asked again" in retried and "KeyError: '0' (v.py:3)" in retried
    # That it failed for good is news.
    assert "no verdict" in gave_up and "train:3" in gave_up


MOODY = """
from pathlib import Path
from verifiers.verdict import correct

class V:
    def parse_reference(self, raw): return raw
    def verify(self, response, reference):
        mark = Path(__file__).with_name(response)
        if not mark.exists():
            mark.touch()
            raise LookupError("not yet")
        return correct()
"""


async def test_retries_that_succeed_are_counted_journaled_and_outlive_the_process(tmp_path: Path) -> None:
    (tmp_path / "v.py").write_text(MOODY)
    task = Task("train:7", "p", (1,), "", VerifierSpec("./v.py:V"))
    journal = Journal(tmp_path / "journal.sqlite")
    async with Grader(
        Verifying(),
        VerifierCache(tmp_path),
        max_fault_retries=1,
        on_retried=lambda task, fault: journal.write(retried_fault(task, fault)),
    ) as grader:
        scores = [await grader.grade(task, response) for response in "abca"]
        assert {score.outcome for score in scores} == {"correct"}
        assert grader.num_retried == 3
    journal.close()
    (row,) = JournalReader(tmp_path / "journal.sqlite").retried_faults()
    assert (row["cause"], row["num_faults"], row["task_id"]) == (
        f"LookupError at {tmp_path / 'v.py'}:11",
        3,
        "train:7",
    )
    assert "LookupError: not yet" in row["detail"] and "raise LookupError" in row["trace"]


async def test_the_journal_of_a_run_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "v.py").write_text(MOODY)
    task = Task("train:7", "p", (1,), "", VerifierSpec("./v.py:V"))
    async with FakeEngine() as engine, controller_on(tmp_path, make_recipe(), [engine]) as (controller, _):
        assert (await controller.grader.grade(task, "a")).outcome == "correct"
        await controller.queue.journal.barrier()
        (row,) = JournalReader(controller.queue.journal.path).retried_faults()
    assert (row["num_faults"], row["task_id"]) == (1, "train:7")


def test_past_the_most_causes_retried_faults_are_still_counted(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    for number in range(statements.MOST_CAUSES + 5):
        journal.write(statements.retried("train:1", f"cause {number}", "", ""))
    journal.write(statements.retried("train:1", "cause 0", "", ""))
    journal.close()
    rows = {row["cause"]: row["num_faults"] for row in JournalReader(journal.path).retried_faults()}
    assert (len(rows), rows["cause 0"], rows["further causes"]) == (statements.MOST_CAUSES + 1, 2, 5)


def look_for(waits: VerdictWaits, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.seconds += 1
        waits.look()


def test_a_silent_verifier_is_named_with_the_time_and_again_when_it_has_doubled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock(100.0)
    waits = VerdictWaits(clock=clock)
    with waits.waiting("./v.py:V"), waits.waiting("./v.py:V"):
        look_for(waits, clock, 45)
    assert [message.split("a verdict")[0] for message in caplog.messages[:3]] == [
        f'waiting for the verifier "./v.py:V": {seconds} s without ' for seconds in (10, 20, 40)
    ]
    assert "2 responses wait" in caplog.messages[0]
    assert caplog.messages[3:] == ['the verifier "./v.py:V" answers again, after 45 s.']


def test_verdicts_that_keep_coming_say_nothing_however_long_each_of_them_takes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock(100.0)
    waits = VerdictWaits(clock=clock)
    with waits.waiting("judge"):
        for _ in range(10):
            with waits.waiting("judge"):
                look_for(waits, clock, 9)
    # Of another verifier they say nothing.
    with waits.waiting("silent"):
        for _ in range(2):
            with waits.waiting("judge"):
                look_for(waits, clock, 9)
    assert [message.split('"')[1] for message in caplog.messages] == ["silent", "silent"]


def test_nothing_is_silent_while_no_response_waits(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(100.0)
    waits = VerdictWaits(clock=clock)
    with waits.waiting("math"):
        look_for(waits, clock, 5)
    look_for(waits, clock, 100)
    with waits.waiting("math"):
        look_for(waits, clock, 5)
    assert caplog.messages == []
