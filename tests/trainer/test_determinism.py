"""What a repeated step is compared by, and the flags of trainer.deterministic."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fakes.models import write_model

from asyncrl.trainer.bootstrap import DETERMINISTIC, make_deterministic
from asyncrl.trainer.reproduce import differences, is_exact, is_same, table


@pytest.mark.exhaustive
def test_deterministic_steps_use_nothing_that_torch_cannot_repeat(tmp_path: Path):
    # torch raises where an operation has no deterministic form.
    command = [sys.executable, "-m", "fakes.deterministic_steps", str(write_model(tmp_path)), "float32", "40"]
    paths = {"PYTHONPATH": str(Path(__file__).parents[1])}
    run = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    first, second = json.loads(run.stdout.splitlines()[-1])
    assert first["grad_norm"] > 0 and second["loss"] != first["loss"]


@pytest.mark.parametrize(
    ("name", "recorded", "again", "same"),
    [
        # 2% of 0.5 is 0.01; below 0.001 nothing differs.
        ("grad_norm", 0.5, 0.509, True),
        ("grad_norm", 0.5, 0.511, False),
        ("loss", 1e-5, -9e-4, True),
        ("loss", 0.0, 1.1e-3, False),
        ("num_tokens", 1000.0, 1001.0, False),
        ("learning_rate", 1e-4, 1.01e-4, False),
        ("loss", None, 0.1, False),
        ("loss", None, None, True),
    ],
)
def test_on_a_gpu_sums_may_differ_a_little_and_counts_not_at_all(
    name: str, recorded: float | None, again: float | None, same: bool
):
    assert is_same(name, recorded, again, exactly=False) == same
    assert is_same(name, recorded, again, exactly=True) == (recorded == again)


def test_bits_are_compared_on_a_cpu_and_on_a_gpu_that_is_deterministic(monkeypatch: pytest.MonkeyPatch):
    assert is_exact(deterministic=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not is_exact(deterministic=False)
    assert is_exact(deterministic=True)


def test_the_table_marks_what_lies_outside_of_the_tolerance():
    recorded = {"loss": 0.25, "grad_norm": 1.0, "num_tokens": 10.0}
    again = {"loss": 0.251, "grad_norm": 1.5, "num_tokens": 10.0}
    assert differences(recorded, again, exactly=False) == ["grad_norm"]
    assert differences(recorded, again, exactly=True) == ["loss", "grad_norm"]
    lines = table(recorded, again, exactly=False).splitlines()[1:]
    marked = [line.split()[0] for line in lines if line.endswith("differs")]
    assert marked == ["grad_norm"]


def test_libraries_read_their_variables_and_what_is_set_already_stays(monkeypatch: pytest.MonkeyPatch):
    calls = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", calls.append)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    for name in DETERMINISTIC:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    make_deterministic()
    assert calls == [True]
    found = {name: os.environ[name] for name in DETERMINISTIC}
    assert found == DETERMINISTIC | {"NCCL_ALGO": "Tree"}
