"""Which checkpoints stay (what a complete one is: tests/trainer/checkpoints/test_checkpoint.py)."""

import json
from pathlib import Path

import pytest

from asyncrl.run.checkpoints import HeldOutAccuracies, to_forget


def heldout(folder: Path, accuracies: dict[int, float]) -> HeldOutAccuracies:
    known = HeldOutAccuracies(folder)
    known.add(accuracies)
    return known


def test_by_count_alone_the_newest_stay(tmp_path: Path) -> None:
    known = heldout(tmp_path, {2: 0.9})
    assert to_forget([2, 4, 6, 8], num_kept=2, heldout=known, evaluated_every=0) == [2, 4]
    assert to_forget([2], num_kept=2, heldout=known, evaluated_every=0) == []


def test_the_best_stays_in_addition_to_the_newest(tmp_path: Path) -> None:
    known = heldout(tmp_path, {2: 0.3, 4: 0.9, 6: 0.5, 8: 0.5})
    assert to_forget([2, 4, 6, 8], num_kept=1, heldout=known, evaluated_every=2) == [2, 6]


def test_of_equals_the_newer_is_the_best(tmp_path: Path) -> None:
    assert heldout(tmp_path, {2: 0.5, 4: 0.5}).best_first([2, 4]) == [4, 2]


def test_a_checkpoint_that_is_being_evaluated_stays_until_that_is_known(tmp_path: Path) -> None:
    # Every second version is evaluated; 4 and 6 are not known yet, 5 never will be.
    known = heldout(tmp_path, {2: 0.5})
    assert to_forget([2, 4, 5, 6, 7], num_kept=1, heldout=known, evaluated_every=2) == [5]
    known.add({4: 0.1})
    assert to_forget([2, 4, 5, 6, 7], num_kept=1, heldout=known, evaluated_every=2) == [4, 5]


def test_an_evaluation_that_got_lost_holds_its_checkpoint_only_until_a_later_one(tmp_path: Path) -> None:
    known = heldout(tmp_path, {2: 0.5, 6: 0.4})
    assert to_forget([2, 4, 6, 8], num_kept=1, heldout=known, evaluated_every=2) == [4, 6]


def test_accuracies_outlive_the_process(tmp_path: Path) -> None:
    heldout(tmp_path, {2: 0.25}).add({4: 0.75})
    again = HeldOutAccuracies(tmp_path)
    assert (again.accuracy(2), again.accuracy(4), again.accuracy(6)) == (0.25, 0.75, None)
    assert again.newest() == 4 and HeldOutAccuracies(tmp_path / "none").newest() == 0


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    known = heldout(tmp_path, {2: 0.25})
    (tmp_path / "heldout.json").write_text(json.dumps({"2": 1.0}))
    known.add({2: 0.25})
    assert HeldOutAccuracies(tmp_path).accuracy(2) == 1.0
    known.add({3: 0.5})
    assert HeldOutAccuracies(tmp_path).accuracy(2) == pytest.approx(0.25)
