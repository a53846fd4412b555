"""A run on real engines under hostile circumstances: from a folder full of modules with Python's names, under
a proxy that nobody answers, then moved to another place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fakes.base_model import write_base_model

from asyncrl.run.metrics_file import written_rows

ASYNCRL = str(Path(sys.executable).with_name("asyncrl"))
SEVENS = Path(__file__).with_name("sevens.py")
NOBODY = "http://127.0.0.1:9"
pytestmark = pytest.mark.slow
RECIPE = {
    "name": "sevens",
    "model": {"path": "parts/model", "context_tokens": 32, "dtype": "bfloat16"},
    "data": {"train": "parts/train.jsonl", "heldout": "parts/heldout.jsonl"},
    "rollout": {"groups_per_batch": 4, "samples_per_group": 4, "max_new_tokens": 8},
    "serving": {"max_total_tokens": 4096, "max_running_requests": 32},
    "trainer": {"num_steps": 2, "checkpoint_every_steps": 1},
    "evaluation": {
        "every_steps": 0,
        "num_tasks": 4,
        "samples_per_task": 2,
        "benchmarks": ["parts/train.jsonl"],
        "benchmark_tasks": 3,
    },
}


def asyncrl(*words: str, cwd: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"), NOBODY)
    environment = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    return subprocess.run(
        [ASYNCRL, *words], cwd=cwd, env=environment | proxies, input=text, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recipe after its run, which was started from the folder `elsewhere` next to it."""
    folder = tmp_path_factory.mktemp("anywhere") / "project"
    write_base_model(folder / "parts" / "model")
    (folder / "parts" / "model" / "generation_config.json").unlink()
    (folder / "sevens.py").write_text("print('a verifier that prints')\n" + SEVENS.read_text())
    for name, first in (("train", 0), ("heldout", 5)):
        rows = [
            {"prompt": f"{n}=", "answer": "7", "verifier": "./sevens.py:Sevens"} for n in range(first, 10)
        ]
        lines = "\n".join(map(json.dumps, rows[:5]))
        (folder / "parts" / f"{name}.jsonl").write_text(lines)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir()
    for name in ("random", "queue", "logging", "types", "torch", "sglang"):
        (elsewhere / f"{name}.py").write_text(f"raise RuntimeError('the {name}.py of the current folder')\n")
    done = asyncrl("train", "../project/recipe.yaml", cwd=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of the current folder" not in done.stdout + done.stderr
    assert "a verifier that prints" not in done.stdout
    return folder


def test_the_line_that_a_run_prints_evaluates_it_from_any_folder_and_json_stands_alone(project: Path) -> None:
    run = project / "runs" / "sevens"
    (checkpoint,) = run.glob("checkpoints/step-2/hf")
    elsewhere = project.with_name("elsewhere")
    recipe = os.path.relpath(run / "recipe.yaml", elsewhere)
    words = (
        "eval",
        "--json",
        "seed=3",
        recipe,
        "evaluation.samples_per_task=1",
        "--checkpoint",
        str(checkpoint),
    )
    done = asyncrl(*words, cwd=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    heldout, benchmark = json.loads(done.stdout)["benchmarks"]
    (found,) = heldout["results"].values()
    assert (heldout["benchmark"], found["num_tasks"], found["k"]) == ("held-out", 4, 1)
    (found,) = benchmark["results"].values()
    assert (benchmark["benchmark"], found["num_tasks"]) == ("train.jsonl", 3)
    assert "a verifier that prints" in done.stderr


def test_the_benchmarks_of_a_recipe_are_measured_before_and_after_under_one_template(project: Path) -> None:
    run = project / "runs" / "sevens"
    rows = written_rows(run / "metrics.jsonl")
    found = [row for row in rows if row["kind"] == "benchmark"]
    assert [(row["benchmark"], row["when"], row["step"], row["num_tasks"]) for row in found] == [
        ("train.jsonl", "before", 0, 3),
        ("train.jsonl", "after", 2, 3),
    ]
    assert {row["template"] for row in rows if row["kind"] in ("eval", "benchmark")} == {
        "none, as the rows are"
    }
    report = (run / "report.html").read_text()
    assert "4 tasks, template none, as the rows are, " in report and "DIFFERENT TEMPLATES" not in report
    assert "train.jsonl: 3 tasks, template none, as the rows are, " in report


def test_an_export_has_what_transformers_expects(project: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (folder,) = project.glob("runs/sevens/checkpoints/step-2/hf")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype is torch.bfloat16
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert model.generation_config.eos_token_id == 1
    assert len(AutoTokenizer.from_pretrained(folder)("3=").input_ids) >= 2


def test_a_project_that_was_moved_still_talks_explains_and_repeats_its_steps(project: Path) -> None:
    moved = project.rename(project.with_name("moved"))
    try:
        run = str(moved / "runs" / "sevens")
        talk = asyncrl("chat", run, cwd=Path("/"), text="3=\né\n")
        assert talk.returncode == 0, talk.stdout + talk.stderr
        assert all(line for line in talk.stdout.splitlines()[-2:])
        journal = asyncrl("journal", run, cwd=Path("/"))
        assert journal.returncode == 0 and "100.0%" in journal.stdout, journal.stderr
        page = asyncrl("view", run, "--export", str(moved / "page.html"), cwd=Path("/"))
        assert page.returncode == 0, page.stderr
        repeated = asyncrl("reproduce", run, "2", cwd=Path("/"))
        assert repeated.returncode == 0, repeated.stdout + repeated.stderr
        assert "step 2 is identical to the last digit." in repeated.stdout
        same = asyncrl("train", str(moved / "recipe.yaml"), cwd=Path("/"))
        assert same.returncode == 0 and "is complete. Raise trainer.num_steps" in same.stdout, same.stderr
    finally:
        moved.rename(project)
