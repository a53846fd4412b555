"""`asyncrl audit`: grades a run's responses again, and refuses what it cannot in one sentence."""

import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fakes.audited_run import write_audited_run
from fakes.commands import Command

from asyncrl.commands import audit
from asyncrl.readers.audit import grading
from asyncrl.system import plugins

STEPS = [
    {1: [("\\boxed{2}", "correct"), ("\\boxed{7}", "wrong")], 2: [("so 3", "wrong"), ("3", "no_answer")]},
    {1: [("\\boxed{9}", "correct"), ("\\boxed{2}", "wrong")], 3: [("?", "fault"), ("\\boxed{4}", "correct")]},
]
"""Under `math`: 00000002-00 is undeserved, 00000002-01 refused, 00000003-00 a recorded fault."""
OTHER = """
from verifiers.verdict import correct, wrong

class Strict:
    def parse_reference(self, raw):
        if raw == "3":
            raise ValueError("3 is no gold")
        return raw

    def verify(self, response, reference, task):
        if "9" in response:
            raise RuntimeError("a nine")
        assert task.row["answer"] == reference and task.prompt.endswith("+1=")
        return correct() if reference in response else wrong(detail="not " + reference)
"""
JUDGE = ["--set", "url=http://127.0.0.1:9/v1", "--set", "model=judge"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_audited_run(
        tmp_path, STEPS, dropped={4: [("\\boxed{1}", "correct"), ("\\boxed{5}", "correct")]}
    )


def audited(command: Command, *words: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command("audit", "runs/mine", "--json", *words, code=code).out)
    return found


def test_disagreements_are_found_by_kind(run: Path, command: Command) -> None:
    found = audited(command)
    kinds = found["kinds"]
    assert (kinds["undeserved"], kinds["recorded fault"], kinds["other fault"]) == (1, 1, 0)
    assert found["num_trained"] == found["num_graded"] == 8
    assert found["undeserved"]["count"] == 1 and found["undeserved"]["of"] == 3
    assert found["undeserved"]["low"] < 1 / 3 < found["undeserved"]["high"]
    assert kinds["refused"] == found["refused"]["count"] and found["refused"]["of"] == 4
    example = found["examples"]["undeserved"]
    assert example["trajectory_id"] == "00000002-00" and example["response"] == "\\boxed{9}"
    assert example["prompt"] == "1+1=" and example["recorded"]["detail"] == "recorded as correct"
    assert example["other"]["outcome"] == "wrong" and example["other"]["extracted"] == "9"
    assert [(part["first_step"], part["num_graded"]) for part in found["parts"]] == [(1, 4), (2, 4)]
    assert found["parts"][0]["undeserved"]["count"] == 0
    assert found["undeserved_of_all"]["count"] == 1 and found["undeserved_of_all"]["of"] == 7
    # What it names is what the journal opens.
    command("journal", "runs/mine", "--trajectory", example["trajectory_id"])


def test_it_is_told_on_a_terminal_with_an_example_of_each(run: Path, command: Command) -> None:
    said = command("audit", "runs/mine").out
    assert "8 of 8 drawn responses graded again, of 8 trained. Recorded by math, again by math." in said
    assert "1 faults in the journal, in no rate." in said and "steps 2-2" in said
    assert "undeserved (rewarded, but wrong by the other): 00000002-00, task train:1, step 2" in said
    assert "asyncrl journal runs/mine --trajectory 00000002-00" in said


def test_another_verifier_takes_the_task_and_its_faults_count_apart(run: Path, command: Command) -> None:
    Path("strict.py").write_text(OTHER)
    found = audited(command, "--verifier", "./strict.py:Strict", "rollout.max_fault_retries=0")
    assert (
        found["kinds"]["other fault"] == 1 and "a nine" in found["examples"]["other fault"]["other"]["detail"]
    )
    assert found["unreadable_golds"] == {
        "num_tasks": 1,
        "num_responses": 2,
        "first": {"train:2": "3 is no gold"},
    }
    assert found["num_graded"] == 6
    assert found["undeserved"]["count"] == 0 and found["undeserved"]["of"] == 2


def test_a_verifier_is_told_the_messages_that_the_recipes_template_makes(run: Path, command: Command) -> None:
    told = (
        '[m["role"] for m in task.messages] == ["system", "user"] and task.question() == task.row["prompt"]'
    )
    source = OTHER.replace('if "9" in response', f"if not ({told})")
    Path("told.py").write_text(source)
    words = ["--verifier", "./told.py:Strict", "prompt.template=chat", "prompt.system=Add."]
    assert audited(command, *words)["kinds"]["other fault"] == 0
    assert audited(command, "--verifier", "./told.py:Strict")["kinds"]["other fault"] > 0


def test_other_golds_come_from_a_file(run: Path, command: Command) -> None:
    Path("golds.jsonl").write_text(json.dumps({"task_id": "train:1", "answer": "7"}) + "\n")
    found = audited(command, "--tests", "golds.jsonl")
    assert found["num_graded"] == 4 and found["num_without_gold"] == 4
    assert found["undeserved"]["count"] == 2 and found["refused"]["count"] == 1


def test_steps_and_dropped_groups_are_chosen(run: Path, command: Command) -> None:
    assert audited(command, "--steps", "2")["num_trained"] == 4
    assert audited(command, "--steps", "1-2", "-n", "3")["num_graded"] == 3
    found = audited(command, "--no-signal", "--steps", "3-9")
    assert found["num_trained"] == 2 and found["undeserved"]["count"] == 1


def test_a_sample_is_the_same_each_time(run: Path, command: Command) -> None:
    first, again = (audited(command, "-n", "3") for _ in range(2))
    assert first == again
    assert any(audited(command, "-n", "3", "--seed", str(seed)) != first for seed in range(1, 9))


def test_compacted_responses_are_counted(run: Path, command: Command) -> None:
    with sqlite3.connect(run / "journal.sqlite") as db:
        db.execute("UPDATE trajectories SET text = NULL WHERE group_id = 0")
    db.close()
    found = audited(command)
    assert found["num_compacted"] == 2 and found["num_trained"] == 6


def test_ctrl_c_prints_what_is_there(run: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    num_told = 0

    async def interrupted(*arguments: Any) -> None:
        *given, told = arguments

        def tell() -> None:
            nonlocal num_told
            num_told += 1
            told()
            if num_told == 2:
                signal.raise_signal(signal.SIGINT)

        await grading.grade_again(*given, tell)

    monkeypatch.setattr(audit, "grade_again", interrupted)
    monkeypatch.setattr(grading, "LANES_PER_WORKER", 1)
    assert 2 <= audited(command, "verifying.num_workers=1", code=130)["num_graded"] < 8


def test_a_verifier_without_verdicts_ends_the_audit_with_its_error(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "MIN_SECONDS", 0.0)
    Path("broken.py").write_text(OTHER.replace('if "9" in response', "if True"))
    words = ["verifying.max_faults_in_a_row=3", "verifying.num_workers=1", "rollout.max_fault_retries=0"]
    said = command("audit", "runs/mine", "--json", "--verifier", "./broken.py:Strict", *words, code=1)
    assert "gave no verdict on 3 responses in a row (verifying.max_faults_in_a_row)" in said.err
    assert "a nine" in said.err and "Traceback" not in said.err
    found = json.loads(said.out)
    assert found["kinds"]["agreed"] == 0 and found["kinds"]["other fault"] >= 2
    assert found["undeserved"]["share"] is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--steps", "3-1"], "--steps is 3-1, expected a range of numbers from 1, such as 10-20."),
        (["--steps", "5-9"], "steps 5 to 9 trained none; the run trained steps 1 to 2."),
        (["--set", "x"], "--set 'x': expected KEY=VALUE."),
        (["--verifier", "mathh"], "There is no verifier 'mathh'. Did you me"),
        (["--verifier", "./none.py:X"], "none.py"),
        (["--verifier", "code"], 'The verifier "code" can read the gold of none of the 3 rows. train:'),
        (["--tests", "none.jsonl"], "--tests names none.jsonl, which cannot be read: No such file"),
        (["--tests", "bad.jsonl"], 'bad.jsonl:1: the line is {"task": 1}'.replace('"', "'")),
        (["--tests", "twice.jsonl"], "twice.jsonl:2: a stands in an earlier line too"),
        (["--tests", "far.jsonl"], "--tests has no gold for any task of 8 responses."),
        (["--verifier", "group_judge", *JUDGE], "A response of asyncrl audit is judged response by response"),
        (["--verifier", "judge", *JUDGE, "turns.environment=./x.py:X"], '"judge" reads the conversation'),
        (["agent.command=[python, x.py]", "agent.verdict=branch"], "agent.verdict: branch"),
        (["agent.command=[x]", "agent.may_give_verdict=true", "agent.roles=[a, b]"], "agent.roles"),
    ],
)
def test_a_mistake_is_one_sentence(run: Path, command: Command, words: list[str], sentence: str) -> None:
    Path("bad.jsonl").write_text('{"task": 1}')
    Path("twice.jsonl").write_text('{"task_id": "a", "answer": 1}\n{"task_id": "a", "answer": 1}')
    Path("far.jsonl").write_text('{"task_id": "elsewhere:1", "answer": "1"}')
    said = command("audit", "runs/mine", *words, code=2).err
    assert sentence in said and "Traceback" not in said


def test_data_that_changed_or_went_away_is_refused(run: Path, command: Command) -> None:
    data = Path("train.jsonl")
    whole = data.read_text()
    data.write_text(whole.replace('"2"', '"5"'))
    said = command("audit", "runs/mine", code=2).err
    assert "data.train has changed since runs/mine was trained" in said
    data.unlink()
    assert "train.jsonl, which cannot be read" in command("audit", "runs/mine", code=2).err
    Path("copies").mkdir()
    Path("copies/train.jsonl").write_text(whole)
    assert audited(command, "data.train=copies/train.jsonl")["num_graded"] == 8
