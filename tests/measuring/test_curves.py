"""Curves of runs on several seeds: what is kept of a run, and the figure drawn of them."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.benchmarks.curves import SHOWN, Curve, curve_of, draw, keep, read_curves


def evaluation(step: int, accuracy: float, tokens: float) -> dict[str, Any]:
    return {"step": step, "greedy_accuracy": accuracy, "response_tokens_mean": tokens}


def curve(recipe: str, seed: int, accuracy: float = 0.5) -> Curve:
    return Curve(recipe, seed, [0, 5], [0.1, accuracy], [4.0, 9.0])


def test_a_curve_has_the_last_evaluation_of_each_version():
    rows = [
        evaluation(0, 0.2, 5.0),
        evaluation(10, 0.6, 7.004),
        evaluation(5, 0.4, 6.0),
        evaluation(10, 0.8, 8.0),
    ]
    assert curve_of("sums", 3, rows) == Curve("sums", 3, [0, 5, 10], [0.2, 0.4, 0.8], [5.0, 6.0, 8.0])


def test_a_run_takes_the_place_of_an_earlier_one_of_its_seed(tmp_path: Path):
    path = tmp_path / "curves.jsonl"
    assert read_curves(path) == []
    for each in (curve("b", 0), curve("a", 1), curve("a", 1, accuracy=0.9)):
        keep(each, path)
    assert read_curves(path) == [curve("a", 1, accuracy=0.9), curve("b", 0)]


def test_the_figure_is_drawn_of_every_recipe_that_it_shows_and_refused_where_one_is_missing(tmp_path: Path):
    curves = [curve(recipe, seed) for recipe in SHOWN for seed in (0, 1)]
    draw(path := tmp_path / "learning.png", curves)
    with Image.open(path) as image:
        assert image.width > image.height > 0
    with pytest.raises(ValueError, match="0 curves of r1_zero_arithmetic_cpu"):
        draw(path, [each for each in curves if each.recipe != "r1_zero_arithmetic_cpu"])


def test_seeds_that_were_evaluated_at_different_versions_are_not_drawn_together(tmp_path: Path):
    curves = [curve(recipe, 0) for recipe in SHOWN]
    other = Curve(next(iter(SHOWN)), 1, [0, 4], [0.1, 0.5], [4.0, 9.0])
    with pytest.raises(ValueError, match="of the same versions"):
        draw(tmp_path / "learning.png", [*curves, other])
