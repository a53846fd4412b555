"""`make gpu-check`: its sentence without a GPU, and what it makes of parts that fail or find nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fakes.gpus import row, whole_gpus, write_nvidia_smi

from asyncrl.errors import InputError
from tests.benchmarks.gpu_check import Part, check_all, chosen, parts_of, read_run, read_tests
from tests.benchmarks.gpu_throughput import profiled

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_check.py"


def check(folder: Path, visible: str) -> subprocess.CompletedProcess[str]:
    """The script on a machine with one GPU and a build of torch for CPUs."""
    write_nvidia_smi(folder / "bin", [row(0)])
    metadata = folder / "site" / "torch-0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n")
    machine = {"PATH": str(folder / "bin"), "PYTHONPATH": str(folder / "site")}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--folder", str(folder / "result")],
        env=os.environ | machine | {"CUDA_VISIBLE_DEVICES": visible},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("visible", "why"),
    [("", "none is visible"), ("0", "torch is a build for CPUs: make setup GPU=1")],
)
def test_without_a_gpu_that_torch_can_use_it_says_why_and_runs_nothing(
    visible: str, why: str, tmp_path: Path
) -> None:
    done = check(tmp_path, visible)
    assert done.returncode == 2 and not (tmp_path / "result").exists()
    assert done.stderr == f"make gpu-check needs an NVIDIA GPU that torch can use, but {why}.\n"


def test_a_part_that_fails_is_shown_with_its_last_lines_and_the_others_run(tmp_path: Path) -> None:
    parts = [
        Part("broken", ["-c", "print('no kernel image'); raise SystemExit(3)"], dict),
        Part("empty", ["-c", "pass"], lambda: read_run(tmp_path / "nothing.jsonl")),
        Part("good", ["-c", "pass"], lambda: {"tokens/s": 12345.678}),
    ]
    assert check_all(parts, whole_gpus(1), tmp_path / "result") == 1
    result = json.loads((tmp_path / "result" / "result.json").read_text())
    assert [(part["name"], part["status"]) for part in result["parts"]] == [
        ("broken", "failed"),
        ("empty", "failed"),
        ("good", "ok"),
    ]
    assert result["parts"][0]["detail"] == "exit code 3\nno kernel image"
    page = (tmp_path / "result" / "page.md").read_text()
    assert "| tokens/s | 12346 |" in page
    assert check_all(parts[2:], whole_gpus(1), tmp_path / "result") == 0


def test_tests_that_were_all_skipped_are_no_success(tmp_path: Path) -> None:
    report = '<testsuites><testsuite tests="9" skipped="{}" /></testsuites>'
    (tmp_path / "tests.xml").write_text(report.format(2))
    assert read_tests(tmp_path / "tests.xml") == {"passed": 7, "skipped": 2}
    (tmp_path / "tests.xml").write_text(report.format(9))
    with pytest.raises(ValueError, match="torch sees no GPU"):
        read_tests(tmp_path / "tests.xml")


def test_a_run_is_read_from_its_steps(tmp_path: Path) -> None:
    rows = [
        {"kind": "step", "step": step, "mismatch_kl": kl, "publish_seconds": 0.5}
        for step, kl in enumerate((1e-3, 3e-3, 2e-3), start=1)
    ]
    lines = [*rows, {"kind": "eval", "step": 3, "when": "after"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_run(tmp_path / "metrics.jsonl")
    assert found == {"steps": 3, "median mismatch_kl": 2e-3, "median publish_seconds": 0.5}


def test_every_part_starts_something_that_is_there(tmp_path: Path) -> None:
    root = SCRIPT.parents[2]
    for part in [*parts_of(tmp_path, num_gpus=1), *parts_of(tmp_path, num_gpus=2)]:
        named = [word for word in part.command if word.startswith(("tests/", "recipes/"))]
        assert named and all((root / word).exists() for word in named)


def test_a_part_that_takes_too_long_is_ended_with_its_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.benchmarks.gpu_check.PART_SECONDS", 3.0)
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    assert check_all([Part("stuck", ["-c", child], dict)], whole_gpus(1), tmp_path) == 1
    assert "not done after 3.0 s" in (tmp_path / "page.md").read_text()


def test_the_attention_that_ran_is_named() -> None:
    queries = torch.randn(1, 2, 8, 16)

    def attend() -> None:
        torch.nn.functional.scaled_dot_product_attention(queries, queries, queries)

    assert "aten::scaled_dot_product_attention" in str(profiled(attend)["attention operators"])
    assert profiled(lambda: torch.ones(2).sum())["attention operators"] == "none seen"


def test_parts_are_chosen_by_name(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, num_gpus=1)
    assert chosen(parts, None) == parts
    assert [part.name for part in chosen(parts, "run,throughput 1.7b")] == ["throughput 1.7b", "run"]
    with pytest.raises(InputError, match=r"names speed, but the parts are throughput 0\.6b,.* run"):
        chosen(parts, "run,speed")
