"""Answers to tasks of reasoning-gym: what counts, what shapes, what is wrong, a fault, or no plain data."""

import ast
import importlib.metadata
import inspect
import json
import sys
from pathlib import Path

import pytest
from fakes.gym import NEEDS_GYM, gym_gold
from hypothesis import given
from hypothesis import strategies as st

import verifiers.gym
from verifiers.contract import check_contract
from verifiers.gym import (
    EVALUATED,
    LITERALS,
    GymReference,
    GymVerifier,
    build_dataset,
    installed_version,
    is_plain_formula,
    load_dataset,
    own_response,
    read_entry,
    written_entry,
)
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
    monkeypatch.setattr(verifiers.gym, "load_dataset", lambda *_: Scorer(say))
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


@pytest.mark.parametrize(
    "text",
    ["(25 + 7)*3 - 4/2", "5*x**3/2 + C", "exp(2*x)*sin(x) + C", "x^2 + 3.5e-2*y", "5!", "", "pi*sqrt(2)"],
)
def test_a_formula_is_plain(text: str):
    assert is_plain_formula(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "eval(chr(49))",
        "setattr(x, y, 1)",
        "sympify(1)",
        "(1).real",
        "x.y",
        "[1, 2]",
        "'a'",
        "lambda: 1",
        "lambda x",
        "x if y else z",
        "{1: 2}",
        "x := 1",
        'f"{x}"',
        "1;2",
        "x = 5",
        "ｅval(1)",
        "\\frac{1}{2}",
        "print(1)",
        "_",
        "x@y",
    ],
)
def test_anything_else_is_not(text: str):
    assert not is_plain_formula(text)


def test_a_long_text_is_read_in_linear_time():
    assert is_plain_formula("1+" * 200_000 + "1")
    assert not is_plain_formula("9" * 400_000 + "'")


ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text()) | st.just("$tuple")
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.sets(st.integers())
        | st.frozensets(st.text())
    ),
    max_leaves=12,
)


@given(VALUES)
def test_plain_data_comes_back_with_its_types(value: object):
    entry = {"question": "?", "answer": None, "metadata": value}
    found = read_entry(json.dumps(written_entry(entry)))
    # repr tells True from 1 and a tuple from a list; sets have no order of their own.
    assert found == entry
    if "set(" not in repr(entry) and "{" not in repr(value):
        assert repr(found) == repr(entry)


def test_numbers_as_keys_and_tuples_come_back():
    metadata = {3: (1, 2), "edges": [(0, 1)], "$items": {"a": {1.5: True}}}
    entry = {"question": "?", "answer": "1", "metadata": metadata}
    assert repr(read_entry(json.dumps(written_entry(entry)))) == repr(entry)


def test_numbers_and_texts_of_numpy_become_plain_ones():
    numpy = pytest.importorskip("numpy")
    entry = {"question": "?", "answer": numpy.str_("a"), "metadata": {"x": numpy.float64(0.5)}}
    found = read_entry(json.dumps(written_entry(entry)))
    assert (type(found["answer"]), type(found["metadata"]["x"])) == (str, float)
    assert found == entry


def test_any_other_object_is_refused_by_its_type():
    with pytest.raises(ValueError, match="a complex is not plain data: '2j'"):
        written_entry({"question": "?", "answer": "", "metadata": {"x": 2j}})


def test_what_is_no_entry_is_refused():
    with pytest.raises(ValueError, match="expected an object with question, answer and metadata"):
        read_entry('{"question": "?"}')


@NEEDS_GYM
@pytest.mark.parametrize(
    ("name", "config", "complaint"),
    [
        ("countdwn", {}, r"has no dataset 'countdwn'\. Did you mean 'countdown'\?$"),
        ("qqqq", {}, r"has no dataset 'qqqq'\. Its datasets: ab, acre, .*, zebra_puzzles\.$"),
        (
            "composite",
            {},
            r"'composite' of reasoning-gym has no tasks of its own: .* list them in data\.train",
        ),
        ("gcd", {"min_number": 2}, r"config of 'gcd' has no key 'min_number'\. Did you mean 'min_numbers'\?"),
        ("gcd", {"seed": 2}, r"config of 'gcd' has 'seed': set `seed` of the source instead\."),
        (
            "chain_sum",
            {"min_terms": 5, "max_terms": 2},
            r"'max_terms': 2\}: max_terms must be >= min_terms\.",
        ),
        ("gcd", {"min_numbers": "two"}, r"The config of 'gcd' is \{'min_numbers': 'two'\}: .*"),
    ],
)
def test_a_mistake_is_named_with_what_was_probably_meant(name: str, config: dict, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        build_dataset(name, config, seed=0, size=10)


def test_without_the_package_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ValueError, match=r"is not installed\. Run `make setup GYM=1`"):
        installed_version()


def _evaluating(source: str) -> set[str]:
    """Names of functions that evaluate text, in the methods that a scorer may call."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("eval", "exec", "parse_expr", "sympify", "S", "compile", "loads", "parse_latex"):
                found.add(name)
    return found


@NEEDS_GYM
def test_each_scorer_that_evaluates_its_answer_is_known():
    """Fails when a new version of the package evaluates answers in another place."""
    build_dataset("gcd", {}, seed=0, size=1)
    from reasoning_gym.factory import DATASETS

    evaluated, literal = set(), set()
    for name, (kind, _) in DATASETS.items():
        scorer = Path(inspect.getfile(kind.score_answer))
        tree = ast.parse(scorer.read_text())
        methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        called = set().union(
            *(_evaluating(ast.unparse(node)) for node in methods if node.name == "score_answer")
        )
        if called & {"parse_expr", "sympify", "S", "exec", "compile", "parse_latex"}:
            evaluated.add(name)
        if "eval" in called:
            literal.add(name)
    assert evaluated == EVALUATED
    assert literal == LITERALS


@NEEDS_GYM
@pytest.mark.parametrize("name", sorted(EVALUATED | LITERALS))
def test_no_scorer_runs_what_the_model_writes(name: str, tmp_path: Path):
    verifier = GymVerifier()
    reference = verifier.parse_reference(gym_gold(name))
    flag = tmp_path / "ran"
    code = f"__import__('pathlib').Path({str(flag)!r}).touch()"
    for text in (code, f"[{code}]", f"str({code})"):
        verdict = verifier.verify(f"<answer>{text}</answer>", reference)
        assert verdict.outcome is Outcome.WRONG
        assert not flag.exists()


@NEEDS_GYM
def test_an_answer_that_is_a_list_still_has_its_partial_score():
    dataset = load_dataset("string_insertion", "{}", seed=3, size=50)
    entry = dataset[0]
    assert dataset.score_answer(str(list(entry["answer"])), entry) == 0.1
    assert "eval" in vars(sys.modules[type(dataset).__module__])
