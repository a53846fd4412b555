"""A whole run of several turns on real engines: killed between turns, resumed, trained on what was
sampled."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from end_to_end.test_interrupt import check_books
from fakes.whole_run import WholeRun

NUM_STEPS = 6
TEMPLATE = "{% for m in messages %}{{ m.content }}={% endfor %}"
"""Whose characters the tiny model's tokenizer knows."""


def play_through_a_kill(run: WholeRun) -> None:
    """The run is killed after step 3 and resumed: its books balance, and step 5 is reproduced."""
    run.start().wait_for_step(3)
    run.kill()
    assert run.finish() == -9
    assert run.start().finish() == 0, run.output()
    assert len({row["step"] for row in run.steps()}) == NUM_STEPS
    check_books(run)
    command = [sys.executable, "-m", "asyncrl.commands.main", "reproduce", str(run.run_folder), "5"]
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "step 5 is identical to the last digit" in again.stdout, again.stdout + again.stderr


@pytest.mark.slow
def test_a_run_that_is_killed_between_turns_continues_each_conversation(tmp_path: Path) -> None:
    run = WholeRun(
        tmp_path,
        turns={"environment": "./turns_game.py:Game", "max_turn_tokens": 4},
        rollout={"groups_per_batch": 4, "samples_per_group": 4, "max_new_tokens": 12, "max_staleness": 1},
        trainer={"num_steps": NUM_STEPS, "learning_rate": 1e-3, "checkpoint_every_steps": 2},
    )
    (tmp_path / "turns_game.py").write_text((Path(__file__).parent / "turns_game.py").read_text())
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    play_through_a_kill(run)
    ended = run.query(
        "SELECT trajectory_id, outcome, detail FROM trajectories JOIN groups USING (group_id) "
        "WHERE state = 'trained'"
    )
    assert len(ended) == NUM_STEPS * 16
    # The environment judged, and a replay after the kill gave the recorded answers: no fault.
    assert {(outcome in ("correct", "wrong"), detail) for _, outcome, detail in ended} == {
        (True, "three turns are over")
    }
    for name, _, _ in ended:
        turns = run.query(
            f"SELECT turn, notes FROM observations WHERE trajectory_id = '{name}' ORDER BY position"
        )
        assert [turn for turn, _ in turns] == [0, 1]
        assert [json.loads(notes)["messages"][0]["content"] for _, notes in turns] == ["1", "2"]
    ((longest,),) = run.query(
        "SELECT max(n) FROM (SELECT sum(length(tokens) / 4) AS n FROM segments GROUP BY trajectory_id)"
    )
    assert longest <= 12


DUET = """
async def run(task):
    first = await task.say(task.messages, model="proposer")
    said = await task.say([{"role": "user", "content": "1"}], model="rival")
    last = await task.say([{"role": "user", "content": said["content"][-1:] or "1"}], model="checker")
    return {"proposer": len(first["content"]) % 2, "checker": len(last["content"]) % 3 / 2}
"""


@pytest.mark.slow
def test_a_run_that_is_killed_between_two_roles_and_an_opponent_trains_each_by_its_own_rewards(
    tmp_path: Path,
) -> None:
    roles: dict[str, Any] = {"roles": ["proposer", "checker"], "may_give_verdict": True}
    roles["opponents"] = {"rival": str(tmp_path / "model")}
    run = WholeRun(
        tmp_path,
        agent={"function": "./duet.py:run", "functions_per_process": 16, **roles},
        algorithm={"advantage": "dr_grpo"},
        rollout={"groups_per_batch": 4, "samples_per_group": 4, "max_new_tokens": 8, "max_staleness": 1},
        trainer={"num_steps": NUM_STEPS, "learning_rate": 1e-3, "checkpoint_every_steps": 2},
    )
    (tmp_path / "duet.py").write_text(DUET)
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    play_through_a_kill(run)
    lines = run.query(
        "SELECT group_id, role, t.advantage, v.reward FROM trajectories t JOIN groups USING (group_id) "
        "JOIN branch_verdicts v USING (trajectory_id) WHERE state = 'trained'"
    )
    assert len(lines) == NUM_STEPS * 16 * 2
    rewards: dict[tuple[int, str], list[float]] = {}
    for group, role, _, reward in lines:
        rewards.setdefault((group, role), []).append(reward)
    assert {role for _, role in rewards} == {"proposer", "checker"}
    assert {len(own) for own in rewards.values()} == {4}
    for group, role, advantage, reward in lines:
        assert advantage == pytest.approx(reward - fmean(rewards[group, role]))
    assert any(len(set(own)) > 1 for own in rewards.values())
    # What the rival said was another's text each time, and no reply of it is left.
    assert len(run.query("SELECT DISTINCT prompt_tokens FROM trajectories WHERE role = 'checker'")) > 1
    assert (
        sqlite3.connect(run.run_folder / "opponents.sqlite").execute("SELECT * FROM replies").fetchall() == []
    )
    last = run.steps()[-1]
    assert {"score_mean_by_part_proposer", "score_mean_by_part_checker"} <= last.keys()


@pytest.mark.slow
def test_a_run_that_is_killed_between_summaries_trains_them_and_is_reproduced(tmp_path: Path) -> None:
    asked = {"at_tokens": 8, "max_tokens": 3, "keep_turns": 1, "request": "0"}
    turns = {"max_turn_tokens": 4, "max_observed_tokens": 4, "summarize": asked}
    run = WholeRun(
        tmp_path,
        model={"path": str(tmp_path / "model"), "context_tokens": 112},
        prompt={"template": "chat"},
        turns={"environment": "./turns_game.py:Game", **turns},
        rollout={"groups_per_batch": 4, "samples_per_group": 4, "max_new_tokens": 24, "max_staleness": 1},
        trainer={"num_steps": NUM_STEPS, "learning_rate": 1e-3, "checkpoint_every_steps": 2},
    )
    (tmp_path / "turns_game.py").write_text((Path(__file__).parent / "turns_game.py").read_text())
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    play_through_a_kill(run)
    ended = run.query(
        "SELECT outcome, detail FROM trajectories JOIN groups USING (group_id) "
        "WHERE state = 'trained' AND branch_of IS NULL"
    )
    assert len(ended) == NUM_STEPS * 16
    assert {(outcome in ("correct", "wrong"), detail) for outcome, detail in ended} == {
        (True, "three turns are over")
    }
    ((num_asked,),) = run.query("SELECT count(*) FROM observations WHERE notes LIKE '%summary_request%'")
    ((num_branches,),) = run.query("SELECT count(*) FROM trajectories WHERE branch_of IS NOT NULL")
    assert num_asked >= num_branches > NUM_STEPS * 16
    assert run.steps()[-1]["summaries_mean"] > 1 and run.steps()[-1]["summary_tokens_mean"] <= 3
