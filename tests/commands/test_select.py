"""`asyncrl select`: writes responses of a run by kind, accounts for all of them, refuses the rest."""

import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from fakes.audited_run import write_audited_run
from fakes.commands import Command
from fakes.refusals import without_page

from asyncrl.data.files import read_rows
from asyncrl.readers.selection.written import Output

STEPS = [
    {
        1: [("so \\boxed{2}", "correct"), ("\\boxed{7}", "wrong")],
        2: [("\\boxed{3}", "correct"), ("\\boxed{3}", "correct")],
        3: [("?", "fault"), ("\\boxed{4}", "correct")],
    },
    {
        1: [("\\boxed{2}", "correct"), ("\\boxed{9}", "wrong")],
        2: [("I add: \\boxed{3}", "correct"), ("nothing", "no_answer")],
        4: [("\\boxed{6}", "wrong"), ("\\boxed{8}", "wrong")],
    },
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Row 3 asks what a held-out row asks, as a chat message."""
    monkeypatch.chdir(tmp_path)
    found = write_audited_run(
        tmp_path, STEPS, dropped={1: [("\\boxed{2}!", "correct"), ("\\boxed{5}", "wrong")]}
    )
    heldout = {"prompt": [{"role": "user", "content": " 3+1= "}], "answer": "4"}
    Path("heldout.jsonl").write_text(json.dumps(heldout) + "\n")
    change(
        found,
        "UPDATE trajectories SET extracted = substr(text, instr(text, '{') + 1, 1) WHERE text LIKE '%{%'",
    )
    return found


def selected(
    command: Command, *words: str, out: str = "out.jsonl", code: int = 0
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Lines of the file, and the summary, whose numbers add up."""
    options = ["--out", out, "--force", "--json", *words]
    summary = json.loads(command("select", "runs/mine", *options, code=code).out)
    for unit, seen in summary["seen"].items():
        assert sum(summary[unit].values()) == seen
    return [found.row for found in read_rows(out, key="out")] if Path(out).exists() else [], summary


def texts(lines: list[dict[str, Any]], column: str = "response") -> list[str]:
    return [line[column] for line in lines]


def test_correct_responses_are_written_once_each_with_where_they_are_from(
    run: Path, command: Command
) -> None:
    lines, summary = selected(command)
    assert texts(lines) == ["so \\boxed{2}", "\\boxed{2}", "\\boxed{2}!", "\\boxed{3}", "I add: \\boxed{3}"]
    assert lines[1]["prompt"] == "1+1=" and lines[1]["answer"] == "2" and lines[1]["verifier"] == "math"
    assert {name: lines[1][name] for name in lines[1] if name.startswith("from_")} == {
        "from_run": "runs/mine",
        "from_row": "train:1",
        "from_choice": "correct",
        "from_template": lines[0]["from_template"],
        "from_tokenizer": lines[0]["from_tokenizer"],
        "from_response": "00000003-00",
        "from_step": 2,
        "from_version_min": 1,
        "from_version_max": 1,
        "from_finish": "stop",
        "from_num_tokens": 3,
        "from_verdict": "correct",
        "from_score": 1.0,
        "from_verifier": "math",
    }
    assert len(lines[0]["from_template"]) == len(lines[0]["from_tokenizer"]) == 64
    assert summary["seen"] == {"rows": 4, "groups": 7, "responses": 14}
    assert summary["rows"] == {"written": 2, "not correct": 1, "asks what is evaluated": 1}
    assert summary["groups"] == {"written": 5, "not correct": 1, "asks what is evaluated": 1}
    assert summary["responses"] == {
        "written": 5,
        "not correct": 6,
        "repeats an earlier response": 1,
        "asks what is evaluated": 2,
    }


def test_each_kind_of_choice_writes_its_own_responses(run: Path, command: Command) -> None:
    assert texts(selected(command, "--choose", "best")[0]) == ["so \\boxed{2}", "\\boxed{3}"]
    assert len(selected(command, "--choose", "shortest", "--limit", "2")[0]) == 4
    # Every vote counts, also that of a repeated text.
    lines, summary = selected(command, "--choose", "majority")
    assert texts(lines) == ["so \\boxed{2}", "\\boxed{2}", "\\boxed{2}!", "\\boxed{3}", "I add: \\boxed{3}"]
    assert summary["rows"]["no answer has the most votes"] == 1
    pairs, summary = selected(command, "--choose", "pairs", "--limit", "2")
    assert [(line["prompt"], line["chosen"], line["rejected"]) for line in pairs] == [
        ("1+1=", "so \\boxed{2}", "\\boxed{7}"),
        ("1+1=", "\\boxed{2}", "\\boxed{9}"),
        ("2+1=", "\\boxed{3}", "nothing"),
    ]
    assert pairs[0]["chosen_score"] == 1.0 and pairs[0]["rejected_score"] == 0.0
    assert (pairs[1]["from_chosen_step"], pairs[1]["from_rejected_verdict"]) == (2, "wrong")
    assert summary["responses"]["beyond the limit per row"] == 2
    # All have three tokens: none is shorter than another.
    lines, summary = selected(command, "--choose", "short_pairs", out="none.jsonl", code=1)
    assert lines == [] and "written" not in summary["rows"]


def test_filters_leave_out_and_count_what_they_do_not_let_through(run: Path, command: Command) -> None:
    lines, summary = selected(command, "--steps", "2")
    assert texts(lines) == ["\\boxed{2}", "I add: \\boxed{3}"] and summary["responses"]["not of --steps"] == 6
    lines, summary = selected(command, "--versions", "2-9", "--limit", "1")
    assert texts(lines) == ["\\boxed{2}!"] and summary["responses"]["not of --versions"] == 10
    lines, summary = selected(command, "--rows", "2")
    assert {line["from_row"] for line in lines} == {"train:2"} and summary["rows"]["not of --rows"] == 3
    _, summary = selected(command, "--length", "4-9", out="none.jsonl", code=1)
    assert summary["responses"]["not of --length"] == 12
    _, summary = selected(command, "--score", "0-0.5", out="none.jsonl", code=1)
    assert summary["responses"]["not of --score"] == 5


def test_another_verifier_grades_first_and_its_faults_are_never_chosen(run: Path, command: Command) -> None:
    Path("strict.py").write_text(
        "from verifiers.verdict import correct, wrong\n"
        "class Strict:\n"
        "    def parse_reference(self, raw):\n"
        "        if raw == '5':\n"
        "            raise ValueError('5 is no gold')\n"
        "        return raw\n"
        "    def verify(self, response, reference):\n"
        "        if '9' in response:\n"
        "            raise RuntimeError('a nine')\n"
        "        return correct() if response == '\\\\boxed{' + reference + '}' else wrong()\n"
    )
    words = ["--verifier", "./strict.py:Strict", "rollout.max_fault_retries=0"]
    lines, summary = selected(command, "--choose", "pairs", *words)
    assert texts(lines, "chosen") == ["\\boxed{2}", "\\boxed{3}"]
    assert texts(lines, "rejected") == ["so \\boxed{2}", "I add: \\boxed{3}"]
    assert lines[0]["from_chosen_verifier"].endswith("strict.py:Strict")
    assert summary["responses"]["a fault"] == 1
    assert summary["responses"]["--verifier cannot read its gold"] == 2


def test_parquet_has_the_same_rows_and_tokens_of_the_journal(run: Path, command: Command) -> None:
    lines, _ = selected(command, "--tokens")
    assert lines[0]["prompt_tokens"] == [1] and lines[0]["response_tokens"] == [0, 1, 2]
    assert lines[0]["response_sampled"] == [True] * 3
    assert selected(command, "--tokens", out="a/new/folder/out.parquet")[0] == lines
    assert (
        str(pyarrow.parquet.read_schema("a/new/folder/out.parquet").field("response_tokens").type)
        == "list<element: int32>"
    )


def test_a_selection_is_data_that_a_recipe_can_read(run: Path, command: Command) -> None:
    selected(command)
    assert "out.jsonl: 5 rows, 5 golds" in command("verify-data", "out.jsonl").out


def test_compacted_responses_are_counted(run: Path, command: Command) -> None:
    change(run, "UPDATE trajectories SET text = NULL WHERE group_id = 0")
    _, summary = selected(command)
    assert summary["responses"]["compacted: its text is gone"] == 2
    change(run, "UPDATE trajectories SET text = NULL")
    said = refusal(command, "runs/mine", "--out", "new.jsonl")
    assert "the texts of all 14 responses were compacted. Give --compacted or -n" in said


def test_a_file_that_is_there_is_kept_and_an_interrupted_one_is_not_begun(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("out.jsonl").write_text("mine")
    said = without_page(refusal(command, "runs/mine", "--out", "out.jsonl"))
    assert said == "--out is out.jsonl, which exists. Name another file, or give --force to replace it."
    monkeypatch.setattr(Output, "add", lambda *_: signal.raise_signal(signal.SIGINT))
    said = command("select", "runs/mine", "--out", "out.jsonl", "--force", code=130).err
    assert "Stopped: --out was not written." in said
    assert Path("out.jsonl").read_text() == "mine" and not Path(".out.jsonl.part").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--choose", "shortes"], "--choose is shortes, expected best, correct, shortest, majority, pairs, "),
        (["--choose", "shortes"], " Did you mean shortest?"),
        (["--out", "out.csv"], "--out is out.csv, expected a file that ends in .jsonl or .parquet."),
        (["--out", "runs/mine/recipe.yaml/x.jsonl"], "/runs/mine/recipe.yaml is a file. Name another one."),
        (["--steps", "3-1"], "--steps is 3-1, expected a range of numbers from 1, such as 10-20."),
        (["--score", "2"], "--score is 2, expected a range of scores within 0 and 1, such as 0.5-1."),
        (["--source", "trian"], "--source is trian, expected one of train. Did you mean train?"),
        (["--all-rows"], "--all-rows is about responses that are generated: give -n, too."),
        (["--set", "x"], "--set 'x': expected KEY=VALUE."),
        (["--verifier", "code"], 'The verifier "code" can read the gold of none of the 4 rows. train:'),
        (["agent.command=[python, x.py]"], "The 14 responses of runs/mine are an agent's own conversations"),
        (["-n", "2", "serving.servers=['http://127.0.0.1:9']"], "serving.servers names servers of others"),
        (["-n", "2", "turns.environment=./x.py:X"], "The recipe has the section turns"),
        (["-n", "2", "--at", "best"], "--at has best, but runs/mine/checkpoints holds no checkpoint"),
    ],
)
def test_a_mistake_is_one_sentence(run: Path, command: Command, words: list[str], sentence: str) -> None:
    said = refusal(command, "runs/mine", "--out", "new.jsonl", *words)
    assert sentence in said and "Traceback" not in said


def test_what_is_no_run_needs_a_number_and_a_changed_file_is_refused(run: Path, command: Command) -> None:
    assert "no journal of a run at nowhere" in refusal(command, "nowhere", "--out", "new.jsonl")
    assert "recipe.yaml is no run" in refusal(command, "recipe.yaml", "--out", "new.jsonl")
    said = refusal(command, "model", "--out", "new.jsonl", "-n", "2")
    assert "model is taken for a model, for it is no run and no recipe: name the rows" in said
    data = Path("train.jsonl")
    data.write_text(data.read_text().replace('"2"', '"5"'))
    assert "data.train has changed since runs/mine" in refusal(command, "runs/mine", "--out", "new.jsonl")


def test_a_run_without_verdicts_is_refused(run: Path, command: Command) -> None:
    change(run, "UPDATE trajectories SET outcome = NULL")
    assert "no response was graded yet" in refusal(command, "runs/mine", "--out", "new.jsonl")


def refusal(command: Command, *words: str) -> str:
    return command("select", *words, code=2).err.strip()


def change(run: Path, statement: str) -> None:
    with sqlite3.connect(run / "journal.sqlite") as db:
        db.execute(statement)
    db.close()
