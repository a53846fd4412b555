"""Selections of rows: what is chosen, and that a run that resumes chooses as it would have."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.recipe import Recipe
from asyncrl.records import RowVisit
from asyncrl.tasks.selection import RowSelection, make_selection
from asyncrl.tasks.source_choice import Mixture

KINDS: dict[str, dict[str, Any]] = {
    "learnable": {"by": "learnable"},
    "curriculum": {"by": "curriculum", "column": "level", "stages": 3, "advance_visits": 4},
    "retire": {"by": "retire", "rest_steps": 5},
}


def selection(
    sizes: list[int], seed: int = 0, levels: list[float] | None = None, reach: int = 1, **keys: Any
) -> RowSelection:
    raw: dict[str, Any] = {
        "name": "x",
        "seed": seed,
        "model": {"path": "m"},
        "data": {"train": "t.jsonl", "selection": keys},
        "rollout": {"samples_per_group": 8, "max_staleness": reach},
        "evaluation": {"every_steps": 0},
    }
    return make_selection(Recipe.model_validate(raw), levels or [float(n) for n in range(sum(sizes))], sizes)


@dataclass
class Asked:
    """A run as its journal has it: choices and visits, in the order in which they happened."""

    admissions: list[tuple[int, int]] = field(default_factory=list)
    """(row, version) of each group."""
    visits: list[tuple[int, RowVisit]] = field(default_factory=list)


def play(
    chosen: RowSelection,
    asked: Asked,
    sizes: list[int],
    pass_rates: list[float],
    rng: random.Random,
    *,
    versions: range,
    batch: int = 4,
    is_late: bool = False,
) -> None:
    """`batch` groups per version; where `is_late`, some are graded at a later version than they began."""
    mixture = Mixture([1.0] * len(sizes), seed=1)
    graded = {visit.group_id for _, visit in asked.visits}
    waiting = [g for g in range(len(asked.admissions)) if g not in graded]
    for version in versions:
        for _ in range(batch):
            group = len(asked.admissions)
            source, _ = mixture.at(group)
            asked.admissions.append((chosen.choose(source, group, version), version))
            waiting.append(group)
        rng.shuffle(waiting)
        for group in waiting[: len(waiting) // 2] if is_late else list(waiting):
            waiting.remove(group)
            row = asked.admissions[group][0]
            right = sum(rng.random() < pass_rates[row] for _ in range(8))
            asked.visits.append((row, RowVisit(group, version, 8, right / 8)))
            chosen.visited(*asked.visits[-1])


def resumed(asked: Asked, sizes: list[int], seed: int, **keys: Any) -> RowSelection:
    """As a new process makes it from the journal: visits in the order of groups, not of grading."""
    again = selection(sizes, seed, **keys)
    for row, visit in sorted(asked.visits, key=lambda each: each[1].group_id):
        again.visited(row, visit)
    for row, version in asked.admissions:
        again.admitted(row, version)
    return again


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    seed=st.integers(0, 1000),
    stop=st.integers(0, 11),
    is_late=st.booleans(),
    sizes=st.sampled_from([[5], [23], [7, 16]]),
)
def test_a_run_that_is_resumed_asks_the_rows_that_it_would_have_asked(
    kind: str, seed: int, stop: int, is_late: bool, sizes: list[int]
) -> None:
    rates = [random.Random(seed).random() for _ in range(sum(sizes))]

    def whole_run(*, is_stopped: bool) -> list[tuple[int, int]]:
        rng, asked, chosen = random.Random(seed), Asked(), selection(sizes, seed, **KINDS[kind])
        play(chosen, asked, sizes, rates, rng, versions=range(stop), is_late=is_late)
        if is_stopped:
            chosen = resumed(asked, sizes, seed, **KINDS[kind])
        play(chosen, asked, sizes, rates, rng, versions=range(stop, 12), is_late=is_late)
        return asked.admissions

    assert whole_run(is_stopped=True) == whole_run(is_stopped=False)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_seeds_differ_and_one_seed_repeats_itself(kind: str) -> None:
    def order(seed: int) -> list[int]:
        chosen = selection([40], seed, **KINDS[kind])
        return [chosen.choose(0, position, 0) for position in range(10)]

    assert order(1) == order(1) != order(2)


def test_learnable_asks_rows_that_are_neither_solved_nor_hopeless() -> None:
    rates = [0.0] * 40 + [0.5] * 20 + [1.0] * 40
    sizes, rng, asked = [100], random.Random(0), Asked()
    chosen = selection(sizes, by="learnable")
    play(chosen, asked, sizes, rates, rng, versions=range(100), batch=8)
    late = [row for row, version in asked.admissions if version >= 50]
    share = sum(40 <= row < 60 for row in late) / len(late)
    # By chance it would be 0.2.
    assert share > 0.6
    # The floor and the half-life bring every row back.
    assert set(late) | {row for row, _ in asked.admissions} == set(range(100))
    assert len({row for row in late if not 40 <= row < 60}) > 40


def test_learnable_does_not_ask_a_row_again_while_its_group_is_in_flight() -> None:
    chosen = selection([30], by="learnable", floor=0.01, reach=1)
    first = [chosen.choose(0, position, 0) for position in range(20)]
    assert max(Counter(first).values()) == 1
    second = [chosen.choose(0, position, 1) for position in range(20, 28)]
    assert not set(first) & set(second)
    # A group that was never graded has ended by then: its row is free again.
    assert set(first) & {chosen.choose(0, position, 3) for position in range(28, 58)}


def test_learnable_with_fewer_rows_than_groups_in_flight_asks_on() -> None:
    chosen = selection([3], by="learnable")
    assert {chosen.choose(0, position, 0) for position in range(12)} == {0, 1, 2}


def test_a_curriculum_begins_with_the_easy_stage_and_adds_one_when_it_is_learned() -> None:
    levels = [float(level) for level in (3, 1, 2) for _ in range(10)]
    keys = {"by": "curriculum", "column": "level", "stages": 3, "advance_at": 0.75, "advance_visits": 4}
    chosen = selection([30], levels=levels, **keys)

    def asked_levels(version: int) -> set[float]:
        start = version * 30
        return {levels[chosen.choose(0, position, version)] for position in range(start, start + 30)}

    assert asked_levels(0) == {1.0}
    easy = [row for row in range(30) if levels[row] == 1.0]
    for group, correct in enumerate((1.0, 0.25, 0.75, 0.5)):
        chosen.visited(easy[group], RowVisit(group, 0, 8, correct))
    assert asked_levels(1) == {1.0}
    # The mean of the last four visits is now 0.75; those to other stages do not count.
    chosen.visited(easy[0], RowVisit(5, 1, 8, 1.0))
    chosen.visited(easy[1], RowVisit(6, 1, 8, 0.75))
    assert asked_levels(2) == {1.0, 2.0}
    for group in range(4):
        chosen.visited(easy[group], RowVisit(10 + group, 2, 8, 1.0))
    assert asked_levels(3) == {1.0, 2.0}


def test_stages_have_equal_shares_but_rows_of_one_level_stay_together() -> None:
    keys = {"by": "curriculum", "column": "level", "stages": 4, "easy": "high"}
    chosen = selection([8], levels=[0.9, 0.9, 0.9, 0.9, 0.9, 0.5, 0.1, 0.1], **keys)
    assert {chosen.choose(0, position, 0) for position in range(5)} == {0, 1, 2, 3, 4}


def test_each_source_of_a_mixture_has_a_curriculum_of_its_own() -> None:
    chosen = selection([4, 4], levels=[1, 2, 3, 4, 10, 20, 30, 40], **KINDS["curriculum"] | {"stages": 4})
    assert {chosen.choose(0, n, 0) for n in range(8)} == {0}
    assert {chosen.choose(1, n, 0) for n in range(8)} == {4}


def test_rows_that_are_solved_rest_and_come_back_for_a_check() -> None:
    chosen = selection([4], by="retire", solved_visits=2, rest_steps=10)

    def asked(version: int) -> list[int]:
        rows = [chosen.choose(0, 100 * version + n, version) for n in range(8)]
        for n, row in enumerate(rows):
            chosen.visited(row, RowVisit(100 * version + n, version, 8, 1.0 if row < 2 else 0.875))
        return rows

    # Two passes over all rows: rows 0 and 1 are solved twice.
    assert Counter(asked(0)) == {0: 2, 1: 2, 2: 2, 3: 2}
    for version in range(1, 10):
        assert set(asked(version)) == {2, 3}
    # Graded at version 0, they rest for 10 versions; one check, and they rest again.
    assert Counter(asked(10))[0] >= 1
    assert set(asked(11)) == {2, 3}


def test_where_all_rows_rest_they_are_asked_all_the_same() -> None:
    chosen = selection([2], by="retire", solved_visits=1)
    for row in (0, 1):
        chosen.visited(row, RowVisit(row, 0, 8, 1.0))
    assert {chosen.choose(0, n, 1) for n in range(20)} == {0, 1}


def test_a_pass_asks_every_row_once_in_another_order_each_time() -> None:
    chosen = selection([50], by="retire")
    first, second = ([chosen.choose(0, 50 * e + n, 0) for n in range(50)] for e in (0, 1))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second


def test_a_million_rows_are_chosen_from_without_holding_the_controller_up() -> None:
    chosen = selection([1_000_000], by="learnable")
    assert len({chosen.choose(0, position, 0) for position in range(5)}) == 5
    assert isinstance(chosen.rates.signal_chances(0, 8), np.ndarray)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"by": "curriculum"}, "data.selection.column is missing, but data.selection.by is curriculum"),
        (
            {"by": "learnable", "column": "x"},
            'data.selection.column is "x", but data.selection.by is learnable',
        ),
        (
            {"by": "retire", "floor": 0.5},
            "data.selection.floor is 0.5, but .* is retire: only learnable reads",
        ),
        ({"by": "learnable", "rest_steps": 3}, "rest_steps is 3, but .* is learnable: only retire reads it"),
    ],
)
def test_keys_that_do_nothing_are_refused(keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        selection([3], **keys)


def test_a_word_alone_is_the_kind_and_the_order_of_the_file_excludes_it() -> None:
    raw: dict[str, Any] = {"name": "x", "model": {"path": "m"}, "evaluation": {"every_steps": 0}}
    data = {"train": "t.jsonl", "selection": "learnable"}
    assert Recipe.model_validate({**raw, "data": data}).data.selection.by == "learnable"
    with pytest.raises(ValueError, match="data.is_shuffled is false, but data.selection is learnable"):
        Recipe.model_validate({**raw, "data": {**data, "is_shuffled": False}})
