"""A whole run that a teacher alone teaches, on rows without answers: the teacher is killed, then the run,
which resumes to the same losses and asks for no score again."""

import json
import signal
from pathlib import Path
from statistics import fmean

import pytest
from fakes.base_model import write_base_model
from fakes.whole_run import WholeRun

from asyncrl.commands import main as cli
from asyncrl.journal.packing import unpack_logprobs

ROWS = "SELECT trajectory_id, logprobs, top FROM teacher_logprobs"


def write_teacher(folder: Path) -> Path:
    """A model with an opinion: random ones are almost uniform, and alike."""
    import safetensors.torch

    file = write_base_model(folder, seed=1) / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    weights["lm_head.weight"] *= 6.0
    safetensors.torch.save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.mark.slow
def test_a_student_comes_to_its_teacher_whatever_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    teacher = write_teacher(tmp_path / "teacher")
    run = WholeRun(
        tmp_path,
        teacher={"path": str(teacher), "top_k": 6},
        rollout={"temperature": 0.7},
        trainer={"learning_rate": 3e-3},
        data={"heldout": None},
    )
    rows = [json.dumps({"prompt": f"{n % 10}="}) for n in range(40)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    run.start().wait_for_step(2)
    run.child(str(teacher)).send_signal(signal.SIGKILL)
    run.wait_for_step(6)
    run.kill()
    run.finish()
    before = set(run.query(ROWS))
    assert run.start().finish() == 0, run.output()

    assert "the teacher" in run.output() and "is back at" in run.output()
    written = (run.run_folder / "metrics.jsonl").read_text().splitlines()
    losses: dict[int, set[float]] = {}
    for row in map(json.loads, written):
        if row["kind"] == "step":
            losses.setdefault(row["step"], set()).add(row["loss"])
    assert len(losses) == 12 and all(len(found) == 1 for found in losses.values()), losses

    assert before <= set(run.query(ROWS))
    scores = {name: logprobs for name, logprobs, _ in run.query(ROWS)}
    # An id and a log-prob of 4 bytes each for each of six.
    assert all(len(top) == 12 * len(logprobs) for _, logprobs, top in run.query(ROWS))
    lengths = dict(
        run.query("SELECT trajectory_id, sum(length(tokens)) FROM segments GROUP BY trajectory_id")
    )
    trained = run.query("SELECT trajectory_id, outcome FROM trajectories WHERE advantage = 0.0")
    assert len(trained) == 12 * 8 * 8 and {outcome for _, outcome in trained} == {"unjudged"}
    assert all(len(scores[name]) == lengths[name] for name, _ in trained)
    assert all(logprob <= 0 for name, _ in trained for logprob in unpack_logprobs(scores[name]))

    steps = run.steps()
    distances = [row["teacher_kl"] for row in steps]
    # Of a step's 700 tokens the mean is known to 0.04.
    assert fmean(distances[6:]) < 0.95 * fmean(distances[:3])
    forward = [row["teacher_forward_kl"] for row in steps]
    assert fmean(forward[6:]) < 0.9 * fmean(forward[:3])
    assert all(0.1 < row["teacher_top_mass"] < 1.0 for row in steps)
    assert "correct_mean" not in steps[0] and "reward_mean" not in steps[0]
    assert not list((run.run_folder / "logs").glob("evaluation*"))
    capfd.readouterr()
    assert cli.main(["reproduce", str(run.run_folder), "12"]) == 0
    assert "step 12 is identical to the last digit." in capfd.readouterr().out
