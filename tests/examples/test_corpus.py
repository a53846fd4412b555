"""The shares of the noisy corpus, measured."""

from random import Random

import pytest

from asyncrl.examples.arithmetic import draw_addition, work_addition
from asyncrl.examples.corpus import OFFSETS, Mix, draw_examples
from asyncrl.examples.pretrain import draw_long_sum, work_long_sum
from asyncrl.examples.rows import problem_of

TASKS = [(draw_addition, work_addition), (draw_long_sum, work_long_sum)]


def boxed(response: str) -> int:
    return int(response.split("</think>")[-1].removeprefix("\\boxed{").removesuffix("}"))


@pytest.mark.parametrize(("draw", "work"), TASKS)
def test_three_quarters_answer_directly_and_half_of_those_are_wrong(draw, work):
    examples = list(draw_examples(draw, work, mix=Mix(), count=8000, seed=0, without=set()))
    direct = [example for example in examples if "<think>" not in example.response]
    errors = [boxed(example.response) - sum(example.terms) for example in direct]
    assert len(direct) / len(examples) == pytest.approx(0.75, abs=0.02)
    assert errors.count(0) / len(direct) == pytest.approx(0.5, abs=0.02)
    assert set(errors) == {0, *OFFSETS}


def test_worked_examples_think_first_and_box_what_the_working_came_to():
    mix = Mix(direct=0.0, noise=0.0)
    for example in draw_examples(draw_addition, work_addition, mix=mix, count=200, seed=0, without=set()):
        working, total = work_addition(example.terms, Random(0), 0.0)
        assert example.response == f"<think>{working}</think>\\boxed{{{total}}}"


def test_a_direct_answer_is_never_negative():
    examples = draw_examples(
        lambda random: (10, random.randrange(10, 20)),
        work_addition,
        mix=Mix(direct=1.0, wrong=1.0),
        count=300,
        seed=0,
        without=set(),
    )
    assert min(boxed(example.response) for example in examples) > 0


def test_held_out_problems_are_not_in_the_corpus():
    without = {problem_of((a, b)) for a in range(10, 100) for b in range(10, 100)}
    examples = draw_examples(draw_addition, work_addition, mix=Mix(), count=500, seed=0, without=without)
    assert without.isdisjoint(problem_of(example.terms) for example in examples)


def test_the_same_seed_draws_the_same_examples():
    drawn = [
        list(draw_examples(draw_addition, work_addition, mix=Mix(), count=50, seed=seed, without=set()))
        for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
