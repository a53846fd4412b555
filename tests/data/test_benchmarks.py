"""The public benchmarks: each row layout, as published, becomes a question with its answer."""

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.newcomer import write_project

from asyncrl.data.benchmarks import CATALOG, GATED, Benchmark, find_benchmark, gpqa
from asyncrl.data.columns import to_row
from asyncrl.data.rows import columns_of
from asyncrl.errors import InputError
from asyncrl.evaluation.evaluation_set import EvaluationSet
from asyncrl.launch.preflight import read_evaluation_inputs
from asyncrl.recipe.file import load_recipe
from asyncrl.recipe.sections.evaluation import Evaluation
from verifiers.choice import ChoiceVerifier
from verifiers.code.verifier import CodeVerifier
from verifiers.registry import load_verifier
from verifiers.verdict import Outcome

MBPP = {
    "task_id": 11,
    "text": "Write a function to add one.",
    "code": "def f(x):\r\n    return x + BASE",
    "test_list": ["assert f(1) == 2"],
    "test_setup_code": "BASE = 1",
    "challenge_test_list": [],
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": """from typing import List


def total(numbers: List[int]) -> int:
    '''Sum them.
    >>> total([1, 2])
    3
    '''
""",
    "entry_point": "total",
    "canonical_solution": "    return sum(numbers)\n",
    "test": """

METADATA = {"author": "x"}


def check(candidate):
    assert candidate([1, 2]) == 3
    assert candidate([]) == 0
""",
}
LAYOUTS: list[tuple[str, dict[str, Any], str, Any]] = [
    ("gsm8k", {"question": "q", "answer": "1+1=<<1+1=2>>2\n#### 2"}, "q", "2"),
    ("math500", {"problem": "q", "solution": "s", "answer": "x", "subject": "Algebra", "level": 2}, "q", "x"),
    ("aime24", {"id": 60, "problem": "q", "solution": "\\boxed{204}", "url": "u"}, "q", "204"),
    ("aime24", {"id": 60, "problem": "q", "solution": "long", "answer": "204", "year": "2024"}, "q", "204"),
    ("aime25", {"id": "0", "problem": "q", "answer": "70"}, "q", "70"),
    ("amc23", {"id": 0, "question": "q", "answer": "27.0", "url": "u"}, "q", "27"),
    ("amc23", {"id": 0, "problem": "q", "question": "q", "answer": 27.0, "url": "u"}, "q", "27"),
    ("minerva_math", {"question": "q", "answer": "4.5e33"}, "q", "4.5e33"),
    ("minerva_math", {"problem": "q", "solution": "so \\boxed{1.6} cm", "type": "t", "idx": 0}, "q", "1.6"),
    ("olympiadbench", {"id": 1, "context": None, "question": "q", "final_answer": ["2"]}, "q", "2"),
    ("olympiadbench", {"context": float("nan"), "question": "q", "final_answer": ["2"]}, "q", "2"),
    ("olympiadbench", {"context": "c", "question": "q", "final_answer": "['1', '2']"}, "c\nq", "1, 2"),
]


def made(name: str, row: dict[str, Any]) -> dict[str, Any]:
    return to_row(columns_of(CATALOG[name].source, name), row, "here")


@pytest.mark.parametrize(("name", "row", "prompt", "answer"), LAYOUTS)
def test_a_published_row_gives_question_and_answer(
    name: str, row: dict[str, Any], prompt: str, answer: Any
) -> None:
    found = made(name, row)
    assert (found["prompt"], found["answer"]) == (prompt, answer)
    # The benchmark's verifier can read its gold, and finds it in a box.
    verifier = load_verifier(CATALOG[name].verifier or "", {})
    reference = verifier.parse_reference(found["answer"])
    assert verifier.verify(f"So it is \\boxed{{{answer}}}.", reference).outcome is Outcome.CORRECT
    assert verifier.verify("So it is \\boxed{17/31}.", reference).outcome is Outcome.WRONG


@pytest.fixture
def verifier() -> Iterator[CodeVerifier]:
    made = CodeVerifier()
    yield made
    made.close()


def test_a_completion_is_graded_together_with_the_prompt_that_it_continues(verifier: CodeVerifier) -> None:
    row = made("humaneval_completion", HUMANEVAL)
    assert row["prompt"] == HUMANEVAL["prompt"]
    reference = verifier.parse_reference(row["answer"])
    for body, outcome in (
        ("    return sum(numbers)\n", Outcome.CORRECT),
        ("    result = 0\n    for n in numbers:\n        result += n\n    return result", Outcome.CORRECT),
        ("    return numbers[0]\n", Outcome.WRONG),
        ("    return sum(numbers", Outcome.WRONG),
        ("", Outcome.WRONG),
    ):
        assert verifier.verify(row["prompt"] + body, reference).outcome is outcome, body


def test_a_whole_function_is_graded_as_it_is(verifier: CodeVerifier) -> None:
    row = made("humaneval", HUMANEVAL)
    assert HUMANEVAL["prompt"] in row["prompt"]
    reference = verifier.parse_reference(row["answer"])
    right = "```python\ndef total(numbers):\n    return sum(numbers)\n```"
    assert verifier.verify(right, reference).outcome is Outcome.CORRECT
    assert verifier.verify(right.replace("sum", "max"), reference).outcome is Outcome.WRONG


def test_mbpp_shows_the_tests_that_grade_it() -> None:
    row = made("mbpp", MBPP)
    assert row["prompt"].endswith("assert f(1) == 2") and row["verifier"] == "code"
    assert row["answer"]["setup"] == "BASE = 1"


def test_every_benchmark_is_pinned_to_a_commit_and_documented_in_the_recipe() -> None:
    documented = Evaluation.model_fields["benchmarks"].description or ""
    for name, benchmark in CATALOG.items():
        assert benchmark.source.revision is not None and len(benchmark.source.revision) == 40
        assert f" {name}" in documented.replace("\n", " "), name


def find(name: str) -> Benchmark:
    return find_benchmark(name, num_samples=4, temperature=0.7, max_new_tokens=60)


def test_a_benchmark_may_be_read_from_a_copy(tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_text("{}")
    found = find(f"gsm8k:{copy}")
    assert (found.name, found.source.path, found.source.columns) == ("gsm8k", str(copy), "gsm8k")
    assert (found.source.config, found.source.split, found.source.revision) == (None, None, None)
    # A folder may have splits.
    assert find(f"gsm8k:{tmp_path}").source.split == "test"


def test_a_file_is_asked_as_its_rows_are_and_sampled_as_held_out_tasks(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("{}")
    found = find(str(tmp_path / "mine.jsonl"))
    assert (found.name, found.num_samples, found.temperature, found.max_new_tokens) == (
        "mine.jsonl",
        4,
        0.7,
        60,
    )
    assert found.is_asked_as_rows and found.verifier is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gsm8", r"gsm8 is neither a benchmark nor a file of rows.* Did you mean gsm8k\?"),
        ("gsm8k:/nowhere.jsonl", r"gsm8k:/nowhere.jsonl needs /nowhere.jsonl, which does not exist"),
        ("/nowhere.parquet", r"needs /nowhere.parquet, which does not exist"),
    ],
)
def test_a_name_that_means_nothing_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        find(name)


def test_the_page_on_evaluation_lists_every_benchmark() -> None:
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name, benchmark in (CATALOG | GATED).items():
        (row,) = [row for row in rows if f"`{name}`" in row or f"`{name}:FILE`" in row]
        assert f"| {benchmark.num_rows:,} " in row and f"| {benchmark.num_samples} |" in row
        assert benchmark.source.path in row


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
