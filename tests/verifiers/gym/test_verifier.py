"""Answers to tasks of reasoning-gym: what counts, what shapes, what is wrong and what is a fault."""

import json

import pytest
from fakes.gym import NEEDS_GYM, gym_gold

import verifiers.gym.verifier
from verifiers.contract import check_contract
from verifiers.gym.datasets import load_dataset
from verifiers.gym.entries import read_entry
from verifiers.gym.verifier import GymReference, GymVerifier, own_response
from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome

SUM = {"question": "1+1", "answer": "2", "metadata": {}}
GOLD = {"gym": "chain_sum", "config": {}, "entry": SUM}


class Scorer:
    """In the place of a dataset: the score is what `say` makes of the answer."""

    def __init__(self, say):
        self._say = say

    def score_answer(self, answer, entry):
        return self._say(answer)


def verdict_on(monkeypatch: pytest.MonkeyPatch, say, response: str, **options):
    monkeypatch.setattr(verifiers.gym.verifier, "load_dataset", lambda *_: Scorer(say))
    verifier = GymVerifier(**options)
    return verifier.verify(response, verifier.parse_reference(GOLD))


def test_a_score_below_the_threshold_is_shaping_and_not_correctness(monkeypatch: pytest.MonkeyPatch):
    lesser = verdict_on(monkeypatch, lambda _: 0.5, "<answer>3</answer>")
    assert (lesser.outcome, lesser.score, lesser.shaping) == (Outcome.WRONG, 0.0, 0.5)
    enough = verdict_on(monkeypatch, lambda _: 0.5, "<answer>3</answer>", correct_at=0.5)
    assert (enough.outcome, enough.score, enough.shaping) == (Outcome.CORRECT, 1.0, 0.0)
    half = verdict_on(monkeypatch, lambda _: 0.5, "<answer>3</answer>", partial_credit=0.5)
    assert (half.score, half.shaping) == (0.0, 0.25)
    none = verdict_on(monkeypatch, lambda _: 0.5, "<answer>3</answer>", partial_credit=0)
    assert (none.score, none.shaping) == (0.0, 0.0)


@pytest.mark.parametrize("response", ["", "2", "so it is 2", "<answer></answer>", "<answer>2", "<think>2"])
def test_nothing_is_paid_for_no_answer(monkeypatch: pytest.MonkeyPatch, response: str):
    verdict = verdict_on(monkeypatch, lambda _: 0.01, response)
    assert (verdict.outcome, verdict.score, verdict.shaping) == (Outcome.NO_ANSWER, 0.0, 0.0)


def _raise_unless_own(answer: str) -> float:
    if answer != "2":
        raise KeyError(answer)
    return 1.0


def _raise(answer: str) -> float:
    raise KeyError(answer)


def test_a_scorer_that_raises_on_a_malformed_answer_finds_it_wrong(monkeypatch: pytest.MonkeyPatch):
    verdict = verdict_on(monkeypatch, _raise_unless_own, "<answer>(2</answer>")
    assert verdict.outcome is Outcome.WRONG
    assert verdict.detail == "the scorer raises KeyError on this answer: '(2'"


def test_a_scorer_that_raises_on_the_right_answer_too_has_failed(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(KeyError):
        verdict_on(monkeypatch, _raise, "<answer>3</answer>")


@pytest.mark.parametrize("score", [float("nan"), -0.1, 1.5, None])
def test_a_score_that_is_none_is_wrong_for_this_answer_alone(monkeypatch: pytest.MonkeyPatch, score):
    verdict = verdict_on(monkeypatch, lambda answer: 1.0 if answer == "2" else score, "<answer>3</answer>")
    assert (verdict.outcome, verdict.shaping) == (Outcome.WRONG, 0.0)


@pytest.mark.parametrize(
    ("response", "options", "expected"),
    [
        ("<answer> 1 </answer> then <answer>\n* _ *\n</answer>", {}, "* _ *"),
        ("<think><answer>1</answer></think><answer>2</answer>", {}, "2"),
        ("<answer> \\boxed{7} </answer>", {}, "7"),
        ("it is \\boxed{7}", {}, "7"),
        ("\\boxed{6} <answer>7</answer>", {}, "7"),
        ("Answer: 7", {"fallbacks": ("answer_line",)}, "7"),
        ("thought</think>\n 7 \n", {"source": "final_part"}, "7"),
    ],
)
def test_the_answer_is_where_templates_ask_for_it(monkeypatch, response: str, options: dict, expected: str):
    seen = []
    verdict_on(monkeypatch, lambda answer: seen.append(answer) or 0.0, response, **options)
    assert seen == [expected]


def test_a_gold_that_is_no_row_of_a_gym_is_refused():
    for raw in (None, "2", {"gym": "gcd"}, {**GOLD, "entry": {"question": "?"}}):
        with pytest.raises(ValueError, match="expected"):
            GymVerifier().parse_reference(raw)


@NEEDS_GYM
@pytest.mark.parametrize(
    ("name", "answer", "hack", "unlike"),
    [
        ("game_of_life_halting", "False", "any text", "True"),
        ("puzzle24", "4*8 - 6 - 2", "6*4*1*1", None),
        ("coin_flip", "0.375", "0", None),
        ("complex_arithmetic", "8.0 + 3.0i", "nan", None),
    ],
)
def test_an_answer_that_solves_nothing_is_wrong_where_the_scorer_likes_it(
    name: str, answer: str, hack: str, unlike: str | None
):
    """Each hack scores 1.0 by the scorer alone."""
    verifier = GymVerifier()
    gold = gym_gold(name)
    gold["entry"]["answer"] = answer
    gold["entry"]["metadata"] |= {"numbers": [4, 8, 6, 2], "result": {"$tuple": [8, 3]}}
    reference = verifier.parse_reference(gold)
    scorer = load_dataset(name, "{}")
    assert scorer.score_answer(hack, read_entry(reference.entry)) == 1.0
    assert verifier.verify(f"<answer>{hack}</answer>", reference).outcome is Outcome.WRONG
    assert verifier.verify(own_response(reference), reference).outcome is Outcome.CORRECT
    if unlike is not None:
        assert verifier.verify(f"<answer>{unlike}</answer>", reference).outcome is Outcome.WRONG


@NEEDS_GYM
async def test_the_contract_is_kept():
    golds = [gym_gold("countdown"), gym_gold("prime_factorization")]
    right = [(gold, f"<answer>{gold['entry']['answer']}</answer>") for gold in golds]
    wrong = [(gold, "<answer>1</answer>") for gold in golds]
    checks = await check_contract("gym", {}, golds, right=right, wrong=wrong)
    assert [(check.promise, check.detail) for check in checks if not check.passed] == []


@NEEDS_GYM
async def test_what_takes_too_long_is_wrong_and_the_next_answer_is_graded():
    gold = gym_gold("countdown")
    own = gold["entry"]["answer"]
    async with VerifierPool(timeout_seconds=2.0) as pool:
        reference = pool.parse_reference("gym", {}, gold)

        async def verdict(answer: str):
            return await pool.verify("gym", {}, f"<answer>{answer}</answer>", reference)

        # Loading the package takes longer than the time limit, and is no part of it.
        assert (await verdict(own)).outcome is Outcome.CORRECT
        late = await verdict("9**9**9")
        assert late.outcome is Outcome.WRONG
        assert late.detail.startswith("timeout:")
        for answer in ("(" * 100_000, "1+" * 500_000, "9" * 1_000_000):
            assert (await verdict(answer)).outcome is Outcome.WRONG
        assert (await verdict(f" {own}")).outcome is Outcome.CORRECT


@NEEDS_GYM
async def test_a_dataset_that_there_is_not_is_a_fault_with_its_sentence():
    async with VerifierPool() as pool:
        reference = GymReference("chain_summ", "{}", json.dumps(SUM))
        verdict = await pool.verify("gym", {}, "<answer>2</answer>", reference)
    assert verdict.outcome is Outcome.FAULT
    assert "has no dataset 'chain_summ'. Did you mean 'chain_sum'?" in verdict.detail
