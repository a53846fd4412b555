"""A recipe with a teacher before anything starts: what `check` and `plan` say of it, and what they refuse."""

import json
import shutil
from pathlib import Path

import pytest
from fakes.newcomer import write_project

from asyncrl.commands import main as cli


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A recipe whose training rows have no answers, and a teacher of the same size."""
    write_project(tmp_path)
    shutil.copytree(tmp_path / "model", tmp_path / "teacher")
    rows = [json.dumps({"prompt": f"{n}+1="}) for n in range(1, 5)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    return [str(tmp_path / "recipe.yaml"), f"teacher.path={tmp_path}/teacher"]


def test_rows_without_answers_are_tasks_where_a_teacher_alone_judges(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", *words]) == 0
    said = capsys.readouterr().out
    assert "# data      4 training tasks that no verifier judges, 4 held-out tasks" in said
    (line,) = (line for line in said.splitlines() if line.startswith("# teacher"))
    assert line.endswith(
        "teacher, on a server of its own, float32: the same token ids; its log-probs in place of a reward, "
        "coefficient 1"
    )
    assert cli.main(["check", *words, "teacher.top_k=4", "teacher.coefficient=0"]) == 0
    said = capsys.readouterr().out
    assert "coefficient 0; forward KL over its 4 likeliest tokens, coefficient 1\n" in said
    assert cli.main(["check", *words, "teacher.top_k=50"]) == 2
    assert "teacher.top_k is 50, but there are 4" in capsys.readouterr().err
    assert cli.main(["check", *words, "teacher.with_reward=true"]) == 2
    assert 'train.jsonl:1: no "answer"; the row has prompt' in capsys.readouterr().err


def test_the_plan_has_the_teachers_process_and_its_bytes_in_the_journal(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", words[0]]) == 0
    without = capsys.readouterr().out
    assert "\nteacher" not in without and "journal    8 bytes for each sampled token\n" in without + "\n"
    assert cli.main(["plan", *words, "teacher.max_total_tokens=1000"]) == 0
    said = capsys.readouterr().out
    assert "teacher    a server of its own, 1 rank(s); each rank " in said
    assert "journal    8 bytes for each sampled token; 4 more for the teacher's log-prob" in said
    assert cli.main(["plan", *words, "teacher.top_k=20"]) == 0
    said = capsys.readouterr().out
    assert "the teacher's log-prob, 160 for its 20 likeliest tokens (teacher.top_k)\n" in said
    assert cli.main(["plan", *words, "teacher.url=http://127.0.0.1:9"]) == 0
    assert "teacher    external: http://127.0.0.1:9" in capsys.readouterr().out


def test_a_teacher_of_another_vocabulary_or_of_too_short_a_context_is_refused(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((tmp_path / "teacher/config.json").read_text())
    (tmp_path / "teacher/config.json").write_text(json.dumps({**config, "max_position_embeddings": 20}))
    assert cli.main(["check", *words]) == 2
    assert (
        "whose context of 20 tokens holds texts of 19, but the longest prompt and its response have 20"
        in (capsys.readouterr().err)
    )
    tokenizer = json.loads((tmp_path / "teacher/tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["0"], vocabulary["1"] = vocabulary["1"], vocabulary["0"]
    (tmp_path / "teacher/tokenizer.json").write_text(json.dumps(tokenizer))
    assert cli.main(["check", *words]) == 2
    assert "in 2 of 49 token ids: 3 is '0' and '1'; 4 is '1' and '0'. Name a model" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "teacher")
    assert cli.main(["check", *words]) == 2
    assert "teacher.path is" in (said := capsys.readouterr().err) and "which is not a folder" in said
