"""Steps of search and verification over the steps of a run."""

from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.examples.search_report import by_group, read_trained, split, table
from asyncrl.journal.responses import TrainedResponse


def response(step: int, text: str, task: int = 0) -> TrainedResponse:
    return TrainedResponse(f"t{step}", f"train:{task}", step, "3 5 7 22:", text, "wrong", 0.0, None, "")


MISS, HIT = "3+5+7=15", "3+5+7=15 not 22;3*5+7=22 is 22<answer>3*5+7</answer>"


def test_steps_are_cut_into_ranges_of_equal_length() -> None:
    ranges = split([response(step, MISS) for step in (7, 1, 2, 3, 4, 5, 6)], 3)
    assert {name: [each.step for each in found] for name, found in ranges.items()} == {
        "1-3": [1, 2, 3],
        "4-6": [4, 5, 6],
        "7-7": [7],
    }


def test_counts_are_per_response_with_groups_as_the_unit() -> None:
    responses = [response(1, MISS), response(1, HIT), response(1, HIT, task=1), response(1, HIT, task=1)]
    assert list(map(len, by_group(responses))) == [2, 2]
    lines = dict(
        line.strip("| ").split(" | ", maxsplit=1) for line in table(split(responses, 1)).splitlines()[2:]
    )
    # Groups have 1.5 and 2 attempts per response: 1.96 * 0.3536 / sqrt(2).
    assert lines["reward"] == "0.000 ± 0.000"
    assert lines["attempts"] == "1.750 ± 0.490"
    assert lines["stops at hit"] == "0.750 ± 0.490"
    assert lines["true checks"] == "1.500 ± 0.980"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no journal"):
        read_trained(tmp_path / "journal.sqlite")
