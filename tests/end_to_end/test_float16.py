"""A run in float16 on real engines whose first gradients overflow, killed between them."""

import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from fakes.whole_run import WholeRun


@pytest.mark.slow
def test_a_float16_run_skips_what_overflows_and_repeats_its_steps_to_the_last_digit(tmp_path: Path) -> None:
    # Batches of the untrained model overflow at 2,048, not at 1,024, where the last step is the first taken.
    trainer = {"num_steps": 8, "initial_loss_scale": 2.0**17, "checkpoint_every_steps": 2}
    run = WholeRun(tmp_path, model={"dtype": "float16"}, trainer=trainer).start()
    run.wait_for_step(3)
    run.kill()
    run.finish()
    run.start()
    assert run.finish() == 0, run.output()
    # Steps after the checkpoint were trained twice, the second time with the loss scale of then.
    steps = list({row["step"]: row for row in run.steps()}.values())
    assert [row["step"] for row in steps] == list(range(1, 9))
    scale = 2.0**17
    for row in steps:
        # One mini-batch per step: it moves the weights, or halves the scale.
        assert row["optimizer_steps"] + row["skipped_steps"] == 1.0
        scale /= 2.0 ** row["skipped_steps"]
        assert row["loss_scale"] == scale
        assert (row["grad_norm"] > 0.0) == (row["learning_rate"] > 0.0) == (row["optimizer_steps"] == 1.0)
    assert steps[0]["skipped_steps"] == 1.0 and steps[-1]["optimizer_steps"] == 1.0
    # Servers, which serve only weights whose digests are the trainer's, computed in the same type.
    assert all(row["mismatch_kl"] < 1e-4 for row in steps if row["mismatch_kl"] is not None)
    counters = dict(run.query("SELECT name, value FROM counters"))
    assert counters["tokens_generated"] == counters["tokens_trained"]
    (file,) = (run.run_folder / "checkpoints").glob("*/hf/*.safetensors")
    assert {tensor.dtype for tensor in safetensors.torch.load_file(file).values()} == {torch.float16}
    command = [sys.executable, "-m", "asyncrl.commands.main", "reproduce", str(run.run_folder), "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "step 8 is identical to the last digit." in done.stdout, done.stdout + done.stderr
