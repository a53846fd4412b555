"""GPQA from a file of one's own: options in a fixed order, and the choice verifier. Rows are made here."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fakes.newcomer import write_project

from asyncrl.data.benchmarks import find_benchmark, gpqa
from asyncrl.errors import InputError
from asyncrl.evaluation.evaluation_set import EvaluationSet
from asyncrl.launch.preflight import read_evaluation_inputs
from asyncrl.recipe.file import load_recipe
from verifiers.choice import ChoiceVerifier
from verifiers.verdict import Outcome


def row_of(number: int, **changed: Any) -> dict[str, Any]:
    row = {"Record ID": f"r{number}", "Question": f'What is {number} + 1,\nin "full"? \n'}
    wrong = {f"Incorrect Answer {i}": f"{number + 1 + i}" for i in (1, 2, 3)}
    return {**row, "Correct Answer": f" {number + 1}\n", **wrong, "Subdomain": "counting"} | changed


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    match path.suffix:
        case ".csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                table = csv.DictWriter(file, list(rows[0]))
                table.writeheader()
                table.writerows(rows)
        case ".json":
            path.write_text(json.dumps(rows))
        case _:
            path.write_text("\n".join(map(json.dumps, rows)))
    return path


def set_of(folder: Path, file: Path) -> EvaluationSet:
    write_project(folder)
    config = folder / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 512}))
    recipe = load_recipe(folder / "recipe.yaml")
    benchmark = find_benchmark(f"gpqa:{file}", num_samples=1, temperature=1.0, max_new_tokens=8)
    (found,) = read_evaluation_inputs(recipe, [benchmark], has_heldout=False).eval_sets
    return found


@pytest.mark.parametrize("name", ["d.csv", "d.jsonl", "d.json"])
def test_a_copy_in_each_form_asks_the_same(tmp_path: Path, name: str) -> None:
    found = set_of(tmp_path, write(tmp_path / name, [row_of(1), row_of(2)]))
    asked = [gpqa(row_of(number))["prompt"] for number in (1, 2)]
    assert len(found.tasks) == 2 and found.num_left_out == 0
    for task, prompt in zip(found.tasks, asked, strict=True):
        assert prompt in task.prompt and "the letter of your final answer within \\boxed{}" in task.prompt
        assert task.verifier.name == "choice"


def test_the_letter_of_the_right_option_is_right_and_each_other_is_wrong() -> None:
    verifier = ChoiceVerifier()
    for number in range(20):
        answer = gpqa(row_of(number))["answer"]
        assert answer["options"][answer["letter"]] == f"{number + 1}"
        reference = verifier.parse_reference(answer)
        for letter in "ABCD":
            outcome = Outcome.CORRECT if letter == answer["letter"] else Outcome.WRONG
            assert verifier.verify(f"so \\boxed{{{letter}}}", reference).outcome is outcome


def test_the_order_is_fixed_for_a_row_and_each_letter_is_right_about_as_often() -> None:
    assert gpqa(row_of(3)) == gpqa(row_of(3))
    # What does not belong to the question moves no option.
    assert gpqa(row_of(3, Subdomain="else")) == gpqa(row_of(3))
    letters = Counter(gpqa(row_of(number))["answer"]["letter"] for number in range(400))
    # 100 each, with a deviation of sqrt(400 x 3 / 16) = 8.7.
    assert letters.keys() == set("ABCD") and all(60 < count < 140 for count in letters.values())
    # The order that other evaluations of these rows must repeat.
    assert "".join(gpqa(row_of(number))["answer"]["letter"] for number in range(8)) == "DCBCCCBB"


def test_a_row_that_lacks_an_option_is_left_out_and_counted(tmp_path: Path) -> None:
    found = set_of(
        tmp_path, write(tmp_path / "d.jsonl", [row_of(1), row_of(2, **{"Incorrect Answer 2": None})])
    )
    assert (len(found.tasks), found.num_left_out) == (1, 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Question,Correct Answer\na\n", "row 1 has another number of values than the header, which has 2"),
        ('Question,Correct Answer\n"a"b,c\n', r"d\.csv: not CSV after line 1: .* Correct the file"),
    ],
)
def test_a_broken_table_is_refused_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(InputError, match=sentence):
        set_of(tmp_path, tmp_path / "d.csv")


def test_without_a_file_the_gate_is_named() -> None:
    with pytest.raises(InputError, match=r"gpqa is gated. Accept its terms at https://.* and name gpqa:FILE"):
        find_benchmark("gpqa", num_samples=1, temperature=1.0, max_new_tokens=8)
