"""Training against a weak verifier is rewarded for a hack; the alarm fires, and an audit tells how often.

The hack is a hedge: the verifier looks for the answer anywhere in the response, so a policy of random weights
learns to write both answers that there are. By `exact`, which wants the answer alone, it earns nothing. Other
hacks are written by hand, in tests/readers/audit/test_hacks.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.whole_run import WholeRun

from asyncrl.commands import main as cli

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


def trained(folder: Path, verifier: str, *, num_steps: int) -> WholeRun:
    """A finished run whose training rows name `verifier`; held-out rows are graded by `exact`."""
    run = WholeRun(
        folder,
        trainer={"num_steps": num_steps},
        evaluation={"every_steps": 10, "num_tasks": 40, "samples_per_task": 1},
    )
    (folder / "weak.py").write_text(WEAK)
    write_rows(folder / "train.jsonl", range(100, 200), verifier)
    write_rows(folder / "heldout.jsonl", range(200, 240), "exact")
    assert run.start().finish(seconds=600) == 0, run.output()
    return run


def alarms_of(run: WholeRun) -> set[str]:
    return {row["alarm"] for row in run.events() if row["event"] == "alarm"}


def audited(run: WholeRun, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["audit", str(run.run_folder), "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hedge_is_learned_from_a_weak_verifier_and_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, "./weak.py:Anywhere", num_steps=40)
    # The weak verifier pays for it, more and more.
    rewards = [step["reward_mean"] for step in run.steps()]
    early, late = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    assert late > early + 0.25, rewards
    assert "reward_without_heldout" in alarms_of(run), run.output()

    found = audited(run, capsys, "--verifier", "exact")
    assert found["num_graded"] == 1000 and found["num_trained"] == 40 * 64
    # By ours the hack earns nothing, from the first step to the last.
    assert found["undeserved"]["low"] > 0.9 and found["parts"][-1]["undeserved"]["low"] > 0.8, found
    assert found["kinds"]["refused"] == 0, found
    assert "grew as a share of all responses" in found["change"], found
    # The trainer's own verifier stands by its verdicts.
    assert audited(run, capsys, "-n", "200")["kinds"]["agreed"] == 200


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_by_a_verifier_of_ours_the_hedge_is_not_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, "exact", num_steps=24)
    assert "reward_without_heldout" not in alarms_of(run), run.output()
    # Of the hedges that chance writes, which the weak verifier would pay, there are hardly more at the end.
    found = audited(run, capsys, "--verifier", f"{tmp_path}/weak.py:Anywhere", "-n", "2000")
    assert found["kinds"]["undeserved"] == 0 and found["parts"][-1]["refused"]["share"] < 0.5, found
