"""A base model for a gym: its questions, how they are answered, and the recipe that names it."""

import re
from pathlib import Path
from random import Random

import pytest
from fakes.gym import NEEDS_GYM
from fakes.refusals import without_page

import asyncrl.data.gym
from asyncrl.commands import main as cli
from asyncrl.data.gym_process import Request, make_row
from asyncrl.errors import InputError
from asyncrl.examples.gym_pretrain import draw_answers, terms_of, work_chain_sum
from asyncrl.launch.prepare import prepare_and_fetch
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from verifiers.gym import build_dataset

RECIPE = Path(__file__).parents[2] / "recipes" / "r1_zero_reasoning_cpu.yaml"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The recipe with little data, everything in a folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    places = {"run_folder": "run", "prepare.folder": "made", "model.path": "made/model"}
    return [*(f"{key}={tmp_path / name}" for key, name in places.items()), "data.train.size=40"]


@NEEDS_GYM
def test_the_recipe_is_accepted_before_its_model_is_made(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", str(RECIPE), *words]) == 0
    assert "is not made yet: train makes it first" in capsys.readouterr().out


@NEEDS_GYM
@pytest.mark.slow
def test_the_recipe_is_accepted_with_the_model_that_it_makes(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words += ["prepare.options.num_examples=16", "prepare.options.examples_per_batch=8"]
    recipe = load_recipe(RECIPE, words)
    prepare_and_fetch(recipe, RECIPE, words, lambda recipe: recipe)
    assert cli.main(["check", str(RECIPE), *words]) == 0
    said = capsys.readouterr().out
    assert "Qwen3ForCausalLM, 0.6 M parameters" in said
    assert "40 training tasks, 256 held-out tasks, every answer parsed by its verifier" in said


def test_without_the_package_the_recipe_is_refused_before_anything_is_made(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def missing() -> str:
        raise ValueError("reasoning-gym is not installed. Run `make setup GYM=1`.")

    def fetch(recipe: Recipe) -> Recipe:
        raise AssertionError("something was fetched")

    monkeypatch.setattr(asyncrl.data.gym, "installed_version", missing)
    refused = 'data.train has the gym "chain_sum", but reasoning-gym is not installed.'
    assert cli.main(["check", str(RECIPE), *words]) == 2
    assert without_page(capsys.readouterr().err) == f"{refused} Run `make setup GYM=1`."
    with pytest.raises(InputError, match="make setup GYM=1"):
        prepare_and_fetch(load_recipe(RECIPE, words), RECIPE, words, fetch)
    assert not (tmp_path / "made").exists()


ASKS = "State the final answer to the following arithmetic problem: {} ="
QUESTION = ASKS.format("4 - 1 - 7 + 9")
CONFIG = {"min_terms": 6, "max_terms": 8, "min_digits": 1, "max_digits": 1}


def test_terms_have_the_signs_in_front_of_them():
    assert terms_of(QUESTION) == (4, -1, -7, 9)


@pytest.mark.parametrize("problem", ["14 - 1", "4 - -1", "4", "4 * 1"])
def test_a_question_that_cannot_be_worked_is_refused_with_the_configuration_that_can(problem: str):
    with pytest.raises(InputError, match="max_digits: 1 and without allow_negation"):
        terms_of(ASKS.format(problem))


def test_a_chain_is_worked_with_a_running_total():
    assert work_chain_sum((4, -1, -7, 9, 8), Random(0), 0.0) == ("4-1=+03;-7=-04;+9=+05;+8=+13", 13)


def test_all_after_a_slip_is_consistent_with_it():
    working, total = work_chain_sum((4, -1, -7), Random(0), 1.0)
    totals = [int(found) for found in re.findall(r"=([+-]\d\d)", working)]
    assert abs(totals[0] - 3) == 1 and abs(totals[1] - (totals[0] - 7)) == 1
    assert total == totals[-1]


def test_the_corpus_answers_in_one_go_or_works_and_leaves_held_out_questions_out():
    questions = [ASKS.format(f"{n % 10} + {n // 10 % 10} - {n // 100}") for n in range(1000)]
    answers = draw_answers(
        questions, worked_first=300, worked=0.2, noise=0.0, seed=0, without=set(questions[:100])
    )
    drawn = list(answers)
    assert [example.prompt for example in drawn] == questions[100:]
    is_worked = ["<think>" in example.response for example in drawn]
    assert all(is_worked[:200])
    assert sum(is_worked[200:]) == pytest.approx(0.2 * 700, abs=35)
    for example in drawn:
        assert example.response.endswith(f"<answer>{sum(example.terms)}</answer>")


@NEEDS_GYM
def test_the_tokenizer_knows_what_the_gym_asks_and_what_answers_it():
    # Loads torch and transformers.
    from asyncrl.examples.gym_pretrain import build_tokenizer

    request = Request("chain_sum", CONFIG, seed=7, size=50, start=0, stop=50)
    dataset = build_dataset("chain_sum", CONFIG, seed=7, size=50)
    questions = [make_row(request, dataset, index)["prompt"] for index in range(50)]
    tokenizer = build_tokenizer()
    for example in draw_answers(questions, worked_first=0, worked=0.5, noise=0.0, seed=0, without=()):
        text = example.prompt + example.response
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == text
        # <bos>, what all questions begin with, and a digit and a sign per term.
        assert len(tokenizer.encode(example.prompt).ids) == 2 + 2 * len(example.terms)
        # Two markers; a first digit, then six tokens a step and ";" between two; the answer.
        assert len(ids) <= 18 + 2 + 49 + 5
