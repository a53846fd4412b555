"""A whole run with adapters on real engines, killed and resumed: the trainer's log-probs are the servers', a
step is reproduced, and what is left is an adapter, its sum with the base, and small checkpoints."""

import json
import signal
from pathlib import Path

import pytest
import safetensors.torch
from fakes.whole_run import WholeRun

from asyncrl.commands import main as cli


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["distributed", "disk"])
def test_a_killed_run_with_adapters_resumes_and_is_reproduced(
    transport: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = {"path": str(tmp_path / "model"), "context_tokens": 32, "lora": {"rank": 8}}
    run = WholeRun(
        tmp_path,
        model=model,
        algorithm={"kl": {"coefficient": 0.01}},
        serving={"weight_transport": transport},
    ).start()
    run.wait_for(lambda: len(run.steps()) >= 3, "step 3", seconds=600)
    run.kill(signal.SIGKILL)
    run.finish()
    assert run.start().finish(seconds=600) == 0, run.output()
    steps = run.steps()
    assert steps[0]["mismatch_logprob_max"] < 1e-4
    assert all(row["mismatch_kl"] is None or row["mismatch_kl"] < 1e-8 for row in steps)
    last = run.run_folder / "checkpoints" / "step-12"
    config = json.loads((last / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["base_model_name_or_path"]) == (8, model["path"])
    base, whole, adapter = (
        safetensors.torch.load_file(file)
        for file in (
            tmp_path / "model" / "model.safetensors",
            last / "hf" / "model.safetensors",
            last / "adapter" / "adapter_model.safetensors",
        )
    )
    assert base.keys() == whole.keys()
    for name, tensor in base.items():
        a, b = (adapter.get(f"base_model.model.{name[:-7]}.lora_{x}.weight") for x in "AB")
        expected = tensor if a is None or b is None else tensor + config["lora_alpha"] / 8 * b @ a
        assert (whole[name] - expected).abs().max() < 1e-6, name
        assert (a is None) == bool((whole[name] == tensor).all())
    capfd.readouterr()
    assert cli.main(["reproduce", str(run.run_folder), "12"]) == 0
    assert "step 12 is identical to the last digit." in capfd.readouterr().out
