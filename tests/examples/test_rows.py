"""The data files: seeded, disjoint, and right."""

import json

import pytest

from asyncrl.examples.arithmetic import draw_addition
from asyncrl.examples.pretrain import draw_long_sum
from asyncrl.examples.rows import draw_problems, problem_of, row_of, write_rows


def test_a_row_is_one_that_a_user_could_have_written():
    assert row_of((347, 85)) == {"prompt": "347+85=", "answer": "432", "verifier": "math"}


@pytest.mark.parametrize("draw", [draw_addition, draw_long_sum])
def test_no_problem_is_drawn_twice_so_train_and_held_out_rows_are_disjoint(draw):
    problems = draw_problems(draw, count=3000, seed=0)
    assert len({problem_of(terms) for terms in problems}) == 3000


def test_the_order_of_the_terms_does_not_make_another_problem():
    assert problem_of((12, 34)) == problem_of((34, 12))


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path):
    for name, seed in [("one", 0), ("same", 0), ("other", 1)]:
        write_rows(tmp_path / name, map(row_of, draw_problems(draw_addition, count=100, seed=seed)))
    one, same, other = ((tmp_path / name).read_bytes() for name in ("one", "same", "other"))
    assert one == same != other
    assert json.loads(one.splitlines()[0])["verifier"] == "math"
