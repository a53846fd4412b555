"""Training against a weak verifier is rewarded for a hack; the alarm fires, and an audit tells how often.

The hack is a hedge: the verifier looks for the answer anywhere in the response, so a policy of random weights
learns to write both answers that there are. By `exact`, which wants the answer alone, it earns nothing. Other
hacks are written by hand, in tests/readers/audit/test_hacks.py.
"""

import json
from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

from asyncrl import cli

WEAK = """
from verifiers.verdict import correct, wrong

class Anywhere:
    def parse_reference(self, raw):
        return str(raw)

    def verify(self, response, reference):
        return correct() if reference in response else wrong(detail="it is nowhere")
"""


def write_rows(path: Path, numbers: range, verifier: str) -> None:
    rows = [{"prompt": f"{n}=", "answer": "37"[n % 2], "verifier": verifier} for n in numbers]
    path.write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hedge_is_learned_from_a_weak_verifier_and_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = WholeRun(
        tmp_path,
        trainer={"num_steps": 40},
        evaluation={"every_steps": 10, "num_tasks": 40, "samples_per_task": 1},
    )
    (tmp_path / "weak.py").write_text(WEAK)
    write_rows(tmp_path / "train.jsonl", range(100, 200), "./weak.py:Anywhere")
    write_rows(tmp_path / "heldout.jsonl", range(200, 240), "exact")
    assert run.start().finish(seconds=600) == 0, run.output()
    # The weak verifier pays for it, more and more.
    rewards = [step["reward_mean"] for step in run.steps()]
    early, late = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    assert late > early + 0.25, rewards
    # The alarm that compares rewards with held-out answers tells of it.
    alarms = {row["alarm"] for row in run.events() if row["event"] == "alarm"}
    assert "reward_without_heldout" in alarms, alarms

    assert cli.main(["audit", str(run.run_folder), "--verifier", "exact", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_graded"] == 1000 and found["num_trained"] == 40 * 64
    # By ours the hack earns nothing, from the first step to the last.
    assert found["undeserved"]["low"] > 0.9 and found["parts"][-1]["undeserved"]["low"] > 0.8, found
    assert found["kinds"]["refused"] == 0, found
    assert "grew as a share of all responses" in found["change"], found
    # The trainer's own verifier stands by its verdicts.
    assert cli.main(["audit", str(run.run_folder), "--json", "-n", "200"]) == 0
    assert json.loads(capsys.readouterr().out)["kinds"]["agreed"] == 200
