"""At which tokens rewards of turns, spans and environments lie, and what advantages make of them."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncrl.algorithms.advantages import gdpo
from asyncrl.recipe import Algorithm, Verifying
from asyncrl.records import Observed, RecordedCall, Score, Segment, Task, Trajectory, VerifierSpec
from asyncrl.rollout.credits import credited_worths, credits_of, total_reward
from asyncrl.rollout.grade import Grader, score_of, with_fitting_credits
from asyncrl.tasks.verifier_cache import VerifierCache
from verifiers.verdict import Outcome, Verdict

CODEC = SimpleNamespace(exact_text=lambda tokens: "".join(chr(token) for token in tokens))
"""One character per token."""


def observed(reward: float | None = None, tokens: int = 2) -> Observed:
    return Observed([0] * tokens, json.dumps({"reward": reward, "messages": []}))


def said(text: str, version: int = 0) -> Segment:
    return Segment(version, [ord(letter) for letter in text], [-1.0] * len(text))


def played(*parts: Segment | Observed) -> Trajectory:
    return Trajectory("t", (1,), list(parts))


def credits(trajectory: Trajectory, **given: object) -> list[tuple[int, float]]:
    return credits_of(score_of(Verdict(Outcome.WRONG, 0.0, **given)), trajectory, CODEC)  # type: ignore[arg-type]


def test_a_turns_reward_lies_at_its_last_sampled_token() -> None:
    three = played(said("ab"), said("c", 1), observed(), said("d"), observed(), said("efg"))
    assert credits(three, turn_rewards=(0.5, -0.25, 1.0)) == [(2, 0.5), (3, -0.25), (6, 1.0)]


def test_an_environment_rewards_the_turn_that_it_answers() -> None:
    three = played(said("ab"), observed(0.5), said("c"), observed(None), said("de"))
    assert credits(three) == [(1, 0.5)]
    # What comes after an answer without room for another turn belongs to the turn before, too.
    cut = played(said("ab"), observed(0.5, tokens=0), said("c"), observed(-1.0))
    assert credits(cut) == [(1, 0.5), (2, -1.0)]


def test_a_span_of_the_graded_turn_lies_at_the_token_that_ends_it() -> None:
    two = played(said("ab"), observed(), said("one. two."))
    assert credits(two, spans=((0, 4, 0.5), (5, 9, -0.5))) == [(5, 0.5), (10, -0.5)]


def test_rewards_at_one_token_add_up_as_they_are_written() -> None:
    two = played(said("ab"), observed(0.1), said("cd"), observed(0.3))
    found = credits(two, turn_rewards=(0.2, 0.1), spans=((0, 1, 0.5), (0, 2, 0.1), (1, 2, -0.5)))
    assert found == [(1, 0.3), (2, 0.5)]
    assert total_reward(0.1, [(1, 0.2), (2, 0.4)]) == 0.7
    assert total_reward(1 / 3, []) == 1 / 3


def test_a_fault_has_no_credits() -> None:
    fault = Score("fault", None, None, None, "", 0.0)
    assert credits_of(fault, played(said("ab"), observed(0.5)), CODEC) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "num_turns", "sentence"),
    [
        ({"spans": ((0, 3, 1.0), (2, 5, 1.0))}, 1, r"span (2, 5, 1.0), but the response has 4 characters"),
        ({"turn_rewards": (1.0, 1.0)}, 3, "2 turn_rewards, but the trajectory has 3 turn(s)"),
        ({"turn_rewards": (1.0,)}, 0, "1 turn_rewards, but the trajectory has 0 turn(s)"),
    ],
)
def test_credits_for_what_the_response_does_not_have_are_a_fault(
    given: dict, num_turns: int, sentence: str
) -> None:
    verdict = Verdict(Outcome.CORRECT, 1.0, seconds=2.0, **given)
    found = with_fitting_credits(verdict, "text", num_turns)
    assert (found.outcome, found.score, found.seconds) == (Outcome.FAULT, None, 2.0)
    assert sentence in found.detail


def test_credits_that_fit_stay() -> None:
    verdict = Verdict(Outcome.CORRECT, 1.0, turn_rewards=(1.0, 2.0), spans=((0, 4, 1.0),))
    assert with_fitting_credits(verdict, "text", 2) is verdict
    assert with_fitting_credits(verdict, "text", None) is verdict


JUDGE = """
from verifiers.verdict import Outcome, Verdict

class V:
    def parse_reference(self, raw): return raw
    def verify(self, response, reference):
        return Verdict(Outcome.CORRECT, 1.0, spans=[(0, 4, 0.5)], turn_rewards=[0.25, 1])
"""


async def test_a_verdict_that_does_not_fit_is_asked_for_again_and_counted_as_a_fault(tmp_path: Path) -> None:
    (tmp_path / "v.py").write_text(JUDGE)
    task = Task("train:7", "p", (1,), "", VerifierSpec("./v.py:V"))
    async with Grader(Verifying(), VerifierCache(tmp_path), max_fault_retries=1) as grader:
        found = await grader.grade(task, "text", num_turns=2)
        assert (found.reward, found.spans, found.turn_rewards) == (1.0, ((0, 4, 0.5),), (0.25, 1.0))
        short = await grader.grade(task, "tex", num_turns=2)
        assert short.outcome == "fault" and "3 characters" in short.detail
        one = await grader.grade(task, "text", num_turns=1)
        assert one.outcome == "fault" and "1 turn(s)" in one.detail
        assert grader.outcomes == {("./v.py:V", "correct"): 1, ("./v.py:V", "fault"): 4}


def test_places_count_the_tokens_of_all_branches() -> None:
    whole = Trajectory("0-0", (1,), [said("ab"), observed(0.5)])
    whole.branches = [Trajectory("0-0.1", (1,), [said("cd"), observed(0.25), said("one. two.")])]
    given = {"turn_rewards": (1.0, 2.0, 3.0), "spans": ((0, 4, 0.5),)}
    assert credits(whole, **given) == [(1, 1.5), (3, 2.25), (7, 0.5), (12, 3.0)]


def test_spans_lie_in_the_branch_of_an_agents_last_call() -> None:
    whole = Trajectory("0-0", (1,), [said("ab")])
    whole.branches = [Trajectory("0-0.1", (1,), [said("one.")]), Trajectory("0-0.2", (1,), [said("two.")])]
    whole.calls = [RecordedCall(i, 0, str(i), branch, 0) for i, branch in enumerate((0, 2, 1))]
    assert credits(whole, spans=((0, 4, 0.5),)) == [(5, 0.5)]


GDPO = Algorithm(advantage="gdpo")


def graded(name: str, scores: dict[str, float], credit: float = 0.0) -> tuple[Trajectory, Score]:
    trajectory = Trajectory(name, (1,), [Segment(0, [5, 6], [-1.0, -1.0])])
    credits = [(1, credit)] if credit else []
    return trajectory, Score("wrong", 0.0, 1.0, None, "", 0.0, credits=credits, scores=scores)


def advantages(*sampled: tuple[Trajectory, Score], algorithm: Algorithm = GDPO) -> list[float]:
    return [worth.advantage for worth in credited_worths(sampled, None, gdpo, algorithm)]


def test_named_scores_reach_the_advantage_also_where_all_rewards_are_equal() -> None:
    high, low = advantages(graded("a", {"right": 1.0}), graded("b", {"right": 0.0}))
    assert high == -low > 0.7


def test_credits_are_one_more_named_score() -> None:
    pair = (graded("a", {"right": 1.0}, 0.25), graded("b", {"right": 0.0}, 1.25))
    assert advantages(*pair) == [0.0, 0.0]
    gdpo = {"name": "gdpo", "part_weights": {"credits": 0.5}}
    high, low = advantages(*pair, algorithm=Algorithm(advantage=gdpo))
    assert high == -low > 0.3


def test_without_named_scores_credits_are_in_the_reward() -> None:
    high, low = advantages(graded("a", {}, 0.5), graded("b", {}))
    assert high == -low > 0.7
