"""`asyncrl select` on a real run: its responses, and others that an engine generates from its checkpoint."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fakes.whole_run import WholeRun

from asyncrl.commands import main as cli
from asyncrl.commands import select_answers


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_a_run_lacks_is_generated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = WholeRun(tmp_path, trainer={"num_steps": 2}, evaluation={"num_tasks": 4})
    heldout = [{"prompt": f"{n}=", "answer": "7", "verifier": "./sevens.py:Sevens"} for n in (9, 11, 12, 13)]
    (tmp_path / "heldout.jsonl").write_text("\n".join(map(json.dumps, heldout)))
    assert run.start().finish(seconds=600) == 0, run.output()
    monkeypatch.chdir(tmp_path)
    folder = str(run.run_folder)

    def select(*words: str) -> dict[str, Any]:
        words = ("select", folder, "--choose", "best", "--force", "--json", *words)
        assert cli.main(list(words)) == 0, capsys.readouterr().err
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert all(sum(found[unit].values()) == seen for unit, seen in found["seen"].items())
        return found

    journaled = select("--out", "journaled.jsonl")
    # The row that asks 9= is held out.
    assert journaled["rows"]["asks what is evaluated"] == 1 and journaled["generated"] == 0
    assert journaled["seen"]["responses"] == run.query("SELECT count(*) FROM trajectories")[0][0]
    have = dict(
        run.query("SELECT task_id, count(text) FROM groups JOIN trajectories USING (group_id) GROUP BY 1")
    )
    wanted = max(have.values()) + 2
    words = ("-n", str(wanted), "--tokens", "rollout.temperature=2")
    first = select("--out", "first.jsonl", *words)
    evaluated = next(task for (task,) in run.query("SELECT task_id FROM groups WHERE prompt = '9='"))
    assert first["generated"] == sum(wanted - count for task, count in have.items() if task != evaluated)
    lines = [json.loads(line) for line in Path("first.jsonl").read_text().splitlines()]
    made = [line for line in lines if line["from_step"] is None]
    assert made and {line["from_version_max"] for line in made} == {2}
    assert all(len(line["response_tokens"]) == line["from_num_tokens"] for line in lines)
    with sqlite3.connect(run.run_folder / "answers.sqlite") as db:
        assert db.execute("SELECT count(*) FROM answers").fetchone() == (first["generated"],)
    db.close()
    # Nothing is left to ask, so no server starts.
    monkeypatch.setattr(select_answers, "serve_folder", None)
    select("--out", "second.jsonl", *words)
    assert Path("second.jsonl").read_bytes() == Path("first.jsonl").read_bytes()
