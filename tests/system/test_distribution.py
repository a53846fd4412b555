"""Another project's `verifiers` or `sandbox` is named before a command imports it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.system import distribution
from asyncrl.system.distribution import check_distribution, check_plugin


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
    monkeypatch.setattr(distribution, "MARK", "what only the other one says")
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
