"""A real run whose files change between two starts: a checkpoint is damaged, its rows change places."""

import json
import random
import signal
from pathlib import Path

import pytest
from fakes.whole_run import WholeRun

from asyncrl.run.checkpoints import saved_versions

VERIFIER = '''
from verifiers.verdict import Outcome, Verdict


class Echo:
    """Says which row it graded against."""

    def parse_reference(self, raw):
        return raw

    def verify(self, response, reference):
        share = response.count("7") / max(1, len(response))
        return Verdict(Outcome.WRONG, share, detail=reference)

    verify_fast = verify
'''


def write_rows(run: WholeRun, numbers: list[int]) -> None:
    rows = [{"prompt": f"{n}=", "answer": f"{n}=", "verifier": "./echo.py:Echo"} for n in numbers]
    for name in ("train.jsonl", "heldout.jsonl"):
        (run.folder / name).write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.slow
def test_a_resumed_run_says_what_it_uses_and_grades_each_answer_by_its_own_row(
    tmp_path: Path, elsewhere: dict[str, list[str]]
) -> None:
    run = WholeRun(tmp_path, serving=elsewhere, trainer={"checkpoint_every_steps": 2, "num_steps": 40})
    (tmp_path / "echo.py").write_text(VERIFIER)
    numbers = list(range(100, 160))
    write_rows(run, numbers)
    checkpoints = run.run_folder / "checkpoints"
    run.start().wait_for(lambda: len(saved_versions(checkpoints)) >= 2, "two checkpoints")
    # At once: what is in flight has no verdict yet.
    run.kill(signal.SIGKILL)
    run.finish()
    saved = saved_versions(checkpoints)
    newest = checkpoints / f"step-{saved[-1]}"
    (newest / "__0_0.distcp").write_bytes(b"garbage")
    random.Random(1).shuffle(numbers)
    write_rows(run, numbers)
    last = saved[-1] + 4
    run.set("trainer.num_steps", last)
    steps_before = len(run.steps())

    assert run.start().finish() == 0, run.output()
    output = run.output()
    assert f"the checkpoint of step {saved[-1]} is damaged: __0_0.distcp is not what was written" in output
    assert f"Training goes back to the one of step {saved[-2]}." in output
    assert f"resuming {run.run_folder} at step {saved[-2] + 1}:" in output
    assert [row["step"] for row in run.steps()[steps_before:]][0] == saved[-2] + 1
    assert "the file of data.train has changed since the last start" in output
    # What a later start compares with and renders by.
    known = {key for (key,) in run.query("SELECT key FROM meta")}
    assert {"digest of data.train", "digest of model.path", "prompts rendered at"} <= known
    graded = run.query(
        "SELECT prompt, detail FROM trajectories JOIN groups USING (group_id) WHERE outcome IS NOT NULL"
    )
    assert len(graded) >= last * 64
    assert all(prompt == detail for prompt, detail in graded)
