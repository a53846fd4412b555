"""What a run runs in and how it differs from what was recorded, an installation that is not ours, and what
processes on a CPU keep in memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.model.layout import rank_environment
from asyncrl.recipe import Trainer
from asyncrl.serving.engine.environment import engine_environment
from asyncrl.system import machine, places
from asyncrl.system.machine import (
    KERNEL_CACHES,
    Environment,
    bfloat16_flag,
    changed_engines,
    describe_environment,
    differences,
)
from asyncrl.system.places import check_distribution, check_plugin

MULTIPLY = """
import psutil, torch

torch.set_num_threads(1)
weights = [torch.randn(576, n).bfloat16() for n in (576, 960, 3072)]
for tokens in range(1, 301):
    for weight in weights:
        torch.randn(tokens, 576).bfloat16() @ weight
    if tokens in (100, 300):
        print(psutil.Process().memory_info().rss >> 20)
"""


def test_trainers_and_servers_on_a_cpu_keep_few_kernels():
    for found in (rank_environment(Trainer(), 0, port=0), engine_environment(threads=1, has_gpu=False)):
        assert KERNEL_CACHES.items() <= found.items()


@pytest.mark.skipif(bfloat16_flag() is None, reason="this CPU has no kernels of bfloat16")
def test_each_new_number_of_tokens_takes_no_more_memory():
    def growth(environment: dict[str, str]) -> int:
        said = subprocess.run(
            [sys.executable, "-c", MULTIPLY],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        before, after = map(int, said.stdout.split())
        return after - before

    assert growth(KERNEL_CACHES) < 0.5 * growth({})


@pytest.fixture(scope="module")
def here() -> Environment:
    return describe_environment(["NVIDIA H100"])


def test_the_environment_of_this_process_names_packages_machine_and_gpus(here: Environment) -> None:
    assert here.packages["pydantic"] and here.packages["asyncrl"] == here.asyncrl
    assert here.num_cores >= 1 and here.memory_gib > 0 and here.cpu
    assert here.gpus == ["NVIDIA H100"]
    assert Environment.model_validate_json(here.model_dump_json()) == here


def test_each_difference_is_a_line(here: Environment) -> None:
    packages = {**here.packages, "torch": "0.1", "gone": "1.0"}
    del packages["pydantic"]
    recorded = here.model_copy(update={"python": "2.7", "packages": packages})
    torch, pydantic = here.packages["torch"], here.packages["pydantic"]
    assert differences(recorded, here) == [
        f"python: recorded '2.7', here {here.python!r}",
        "package gone: recorded 1.0, here none",
        f"package pydantic: recorded none, here {pydantic}",
        f"package torch: recorded 0.1, here {torch}",
    ]
    assert differences(here, here) == []


def test_another_version_of_what_computes_is_said(here: Environment) -> None:
    packages = {**here.packages, "torch": "0.1", "pydantic": "0.1"}
    del packages["sglang"]
    before = here.model_copy(update={"python": "2.7", "packages": packages, "platform": "another"})
    words = changed_engines(before, here)
    torch, sglang = here.packages["torch"], here.packages["sglang"]
    assert words is not None and words.startswith(
        f"the run resumes under python {here.python} (before: 2.7), torch {torch} (before: 0.1), sglang "
        f"{sglang} (before: none): "
    )
    # Others compute nothing.
    assert changed_engines(here.model_copy(update={"platform": "another"}), here) is None


def test_a_checkout_has_a_commit_and_says_whether_files_changed(tmp_path: Path) -> None:
    assert machine._checkout(tmp_path) == (None, None)
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    commit, is_changed = machine._checkout(tmp_path)
    assert commit is not None and len(commit) == 40 and is_changed is False
    (tmp_path / "file").write_text("2")
    assert machine._checkout(tmp_path) == (commit, True)


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine._checkout(tmp_path) == (None, None)


@pytest.mark.parametrize("name", ["verifiers", "sandbox"])
@pytest.mark.parametrize("words", [["keys"], ["verify", "rows.jsonl"]])
def test_a_package_of_another_project_is_named_with_the_way_out(
    tmp_path: Path, name: str, words: list[str]
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("from .rubric import Rubric\n")
    paths = os.pathsep.join([str(tmp_path), os.getcwd()])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "asyncrl.commands.main", *words],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f'"import {name}" finds' in done.stderr and str(tmp_path / name) in done.stderr
    assert "a separate environment" in done.stderr and "verifier `remote`" in done.stderr


def test_a_package_that_was_installed_over_ours_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check_distribution()
    monkeypatch.setattr(places, "MARK", "what only the other one says")
    with pytest.raises(InputError, match='"import verifiers" finds'):
        check_distribution()


@pytest.mark.parametrize("module", ["asyncrl.gone.plugin", "asyncrl.serving.engine.gone"])
def test_an_installation_whose_plugin_has_moved_is_told_to_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    check_plugin()
    installed = tmp_path / "asyncrl-0.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: asyncrl\nVersion: 0.0\n")
    (installed / "entry_points.txt").write_text(f"[sglang.srt.plugins]\nasyncrl = {module}:load\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=rf"plugin {module}:load, which is not there.*make setup"):
        check_plugin()
