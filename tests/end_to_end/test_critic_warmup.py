"""A critic that starts as an earlier run's model and warms up on its responses, on real engines."""

import json
from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

GAE = {"algorithm": {"advantage": "gae"}, "critic": {"learning_rate": 1e-3}}
STEPS = 4
WARMUP = 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_critic_is_warmed_up_on_an_earlier_run_and_resumes_inside(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = WholeRun(tmp_path / "first", **GAE, trainer={"num_steps": WARMUP})
    assert first.start().finish(seconds=900) == 0, first.output()
    critic = {"path": str(first.run_folder), "warmup_run": str(first.run_folder), "warmup_steps": WARMUP}
    second = WholeRun(
        tmp_path / "second",
        algorithm=GAE["algorithm"],
        critic=GAE["critic"] | critic,
        trainer={"num_steps": STEPS, "checkpoint_every_steps": 1},
    )
    second.start().wait_for(lambda: len(second.steps()) >= 2, "step 2", seconds=900)
    second.kill()
    assert second.process is not None
    second.process.wait()
    assert second.start().finish(seconds=900) == 0, second.output()
    written = [json.loads(line) for line in (second.run_folder / "metrics.jsonl").read_text().splitlines()]
    losses: dict[int, set[float]] = {}
    for row in written:
        if row["kind"] == "step":
            losses.setdefault(row["step"], set()).add(row["value_loss"])
    assert [*losses] == [*range(1, STEPS + 1)]
    assert all(len(found) == 1 for step, found in losses.items() if step <= WARMUP), losses
    # The warm-up's groups are the first run's, whose policy this run never had.
    taken = second.query("SELECT taken_version, task_id FROM groups WHERE taken_version IS NOT NULL")
    assert {version for version, task in taken if task.startswith("critic.warmup_run:")} == {*range(WARMUP)}
    assert {version for version, task in taken if not task.startswith("critic.warmup_run:")} == {WARMUP}
    # Those that were trained again once.
    steps = [*{row["step"]: row for row in second.steps()}.values()]
    assert [row["learning_rate"] > 0 for row in steps] == [False] * WARMUP + [True]
    assert "mismatch_kl" not in steps[0] and "mismatch_kl" in steps[-1]
    counters = dict(second.query("SELECT name, value FROM counters"))
    assert counters["tokens_generated"] == sum(
        n for name, n in counters.items() if name != "tokens_generated"
    )
