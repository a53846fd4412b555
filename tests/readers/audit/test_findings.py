"""Findings: which kind a disagreement is, what counts in which rate, and whether undeserved rewards grew."""

import pytest

from asyncrl.journal.responses import TrainedResponse
from asyncrl.readers.audit.findings import Findings, excerpt, findings, kind_of
from asyncrl.readers.audit.grading import AuditTasks, Drawn, Regraded
from verifiers.verdict import Verdict, correct, fault, no_answer, wrong


def regraded(
    recorded: str, other: Verdict, *, name: int = 0, task: int = 0, step: int = 1, text: str = "text"
) -> Regraded:
    response = TrainedResponse(f"{name:08d}-00", f"train:{task}", step, "1+1=", text, recorded, 0.0, None, "")
    return Regraded(response, other)


def found_in(graded: list[Regraded]) -> Findings:
    drawn = Drawn([each.response for each in graded], len(graded), 0, 0)
    return findings(drawn, AuditTasks(), {each.response.trajectory_id: each for each in reversed(graded)})


@pytest.mark.parametrize(
    ("recorded", "other", "kind"),
    [
        ("correct", correct(), "agreed"),
        ("wrong", no_answer("nothing"), "agreed"),
        ("correct", wrong(), "undeserved"),
        ("correct", no_answer("nothing"), "undeserved"),
        ("wrong", correct(), "refused"),
        ("no_answer", correct(), "refused"),
        ("fault", correct(), "recorded fault"),
        ("fault", fault("broken"), "recorded fault"),
        ("correct", fault("broken"), "other fault"),
        ("wrong", fault("broken"), "other fault"),
    ],
)
def test_a_pair_of_verdicts_has_one_kind(recorded: str, other: Verdict, kind: str) -> None:
    assert kind_of(regraded(recorded, other)) == kind


def test_faults_are_in_no_rate() -> None:
    pairs = [("correct", wrong()), ("correct", correct()), ("wrong", correct()), ("wrong", wrong())]
    sound = [regraded(*pair, name=i, task=i) for i, pair in enumerate(pairs)]
    faults = [
        regraded("fault", wrong(), name=8, task=8),
        regraded("correct", fault("broken"), name=9, task=9),
        regraded("wrong", fault("broken"), name=10, task=10),
    ]
    without, with_faults = found_in(sound), found_in(sound + faults)
    for rate, of in (("undeserved", 2), ("undeserved_of_all", 4), ("refused", 2)):
        assert with_faults[rate] == without[rate]  # type: ignore[literal-required]
        assert without[rate]["count"] == 1 and without[rate]["of"] == of  # type: ignore[literal-required]
    assert with_faults["kinds"]["recorded fault"] == 1 and with_faults["kinds"]["other fault"] == 2


def test_the_example_is_the_first_that_was_drawn() -> None:
    graded = [regraded("correct", wrong(), name=i, text=str(i)) for i in (7, 3, 5)]
    assert found_in(graded)["examples"]["undeserved"]["trajectory_id"] == "00000007-00"


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        (
            (0.1, 0.3, 0.6, 0.9),
            "grew as a share of rewarded responses, and grew as a share of all responses.",
        ),
        ((0.9, 0.6, 0.3, 0.1), "shrank as a share of rewarded responses, and shrank as a share of all"),
        ((0.5, 0.1, 0.9, 0.5), "show no clear change as a share of rewarded responses, and show no clear"),
    ],
)
def test_growth_is_told_where_intervals_are_apart(shares: tuple[float, ...], said: str) -> None:
    graded = [
        regraded(
            "correct", wrong() if i < 40 * share else correct(), name=100 * step + i, task=i, step=step + 1
        )
        for step, share in enumerate(shares)
        for i in range(40)
    ]
    found = found_in(graded)
    assert [part["first_step"] for part in found["parts"]] == [1, 2, 3, 4]
    assert said in found["change"]


def test_a_hack_that_always_paid_grows_as_a_share_of_all_responses() -> None:
    graded = [
        regraded("correct" if i < paid else "wrong", wrong(), name=100 * step + i, task=i, step=step)
        for step, paid in ((1, 8), (2, 36))
        for i in range(40)
    ]
    assert found_in(graded)["change"] == (
        "Over the steps, undeserved rewards show no clear change as a share of rewarded responses, and grew "
        "as a share of all responses."
    )


def test_nothing_graded_has_no_rates() -> None:
    found = found_in([])
    assert found["undeserved"]["share"] is None and found["parts"] == [] and found["change"] == ""


def test_an_excerpt_keeps_both_ends() -> None:
    text = "a" * 500 + "b" * 500
    short = excerpt(text, 90)
    assert short.startswith("a" * 30 + " [...] ") and short.endswith("b" * 60) and len(short) == 97
    assert excerpt("short", 90) == "short"
