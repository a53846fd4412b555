"""A whole run of agents on real engines, whose evaluations play them on a server of their own."""

import json
from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

AGENT = """
async def run(task):
    first = await task.say(task.messages, max_tokens=3)
    await task.say([*task.messages, first, {"role": "user", "content": "1"}], max_tokens=3)
"""
TEMPLATE = "{% for m in messages %}{{ m.content }}={% endfor %}"
"""Whose characters the tiny model's tokenizer knows."""
NUM_STEPS = 4


@pytest.mark.slow
def test_a_run_of_agents_is_evaluated_by_its_agents_before_during_and_after(tmp_path: Path) -> None:
    run = WholeRun(
        tmp_path,
        agent={"function": "./agent.py:run", "max_agents": 8},
        rollout={"groups_per_batch": 2, "samples_per_group": 2, "max_staleness": 1},
        algorithm={"advantage": "remax"},
        trainer={"num_steps": NUM_STEPS, "learning_rate": 1e-3},
        evaluation={"every_steps": 2, "num_servers": 1, "num_tasks": 4, "samples_per_task": 2},
    )
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    assert run.start().finish() == 0, run.output()
    for when in ("before", "during", "after"):
        row = run.evaluation(when)
        assert (row["num_tasks"], row["num_faults"], row["turns_mean"]) == (4, 0, 2.0), json.dumps(row)
        # The server of evaluations holds one version.
        assert row["version_min"] == row["version_max"] == row["step"]
    assert run.evaluation("after")["k"] == 2 and run.evaluation("during").get("k") is None
    # The greedy baseline of each group has two turns, too, and is never trained.
    baselines = run.query(
        "SELECT count(*) FROM trajectories JOIN observations USING (trajectory_id) "
        "JOIN groups USING (group_id) WHERE state = 'trained' AND sample = 2"
    )
    assert baselines == [(NUM_STEPS * 2,)]
