"""Preparing data and base model: before or after the model is fetched, and never longer than its command."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from fakes.commands import Command
from fakes.gguf_files import TOKENS, write_gguf
from fakes.models import write_model
from fakes.processes import wait_for_end

from asyncrl.errors import InputError
from asyncrl.launch.base_model import fetch_model
from asyncrl.launch.prepare import prepare_and_fetch
from asyncrl.model.folder import check_model_folder
from asyncrl.model.source import model_folder
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe

TARGET = """
import os, time
from pathlib import Path

def make(folder, progress):
    Path({pid!r}).write_text(str(os.getpid()))
    time.sleep(1000)
"""


def test_sigterm_to_the_command_ends_what_prepares(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    (tmp_path / "slow_target.py").write_text(TARGET.format(pid=str(pid)))
    recipe = {
        "name": "t",
        "prepare": {"target": "slow_target:make", "folder": str(tmp_path / "made")},
        "model": {"path": "m"},
        "data": {"train": "d"},
        "evaluation": {"every_steps": 0},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "asyncrl.commands.main", "train", str(tmp_path / "recipe.yaml")]
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL, cwd=tmp_path
    )
    deadline = time.monotonic() + 300
    while not (pid.exists() and pid.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    maker = psutil.Process(int(pid.read_text()))
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=300)
    assert not wait_for_end([maker])


COPY = """
import shutil

def make(folder, progress, *, original):
    shutil.copy(original, folder / "small.gguf")
"""


def write_recipe(folder: Path, model: str, **options: str) -> Path:
    (folder / "copy_target.py").write_text(COPY)
    recipe = {
        "name": "t",
        "prepare": {"target": "./copy_target.py:make", "folder": "made", "options": options},
        "model": {"path": model},
        "data": {"train": "d"},
        "evaluation": {"every_steps": 0},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "recipe.yaml"


def test_a_gguf_file_that_prepare_makes_is_the_model_of_the_first_start_and_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for seed in (0, 1):
        source = write_model(tmp_path / f"source{seed}", "Qwen2", vocab_size=len(TOKENS), seed=seed)
        gguf = write_gguf(tmp_path / f"original{seed}.gguf", source, check_model_folder(source))
        path = write_recipe(tmp_path, "made/small.gguf", original=str(gguf))
        recipe = prepare_and_fetch(load_recipe(path), path, [], fetch_model)
        # What any process of the run finds.
        assert check_model_folder(model_folder(recipe.model)).architecture == "Qwen2ForCausalLM"
        assert (tmp_path / "made" / "small.gguf").read_bytes() == gguf.read_bytes()


def test_what_is_wrong_with_the_model_is_said_before_anything_is_made(tmp_path: Path):
    def refuse(recipe: Recipe) -> Recipe:
        raise InputError("no such model")

    path = write_recipe(tmp_path, "made/small.gguf", original="nowhere")
    with pytest.raises(InputError, match=r'model\.revision is "main"'):
        prepare_and_fetch(load_recipe(path, ["model.revision=main"]), path, [], fetch_model)
    path = write_recipe(tmp_path, "tiny/modell", original="nowhere")
    with pytest.raises(InputError, match="no such model"):
        prepare_and_fetch(load_recipe(path), path, [], refuse)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prepare", "{target: 'asyncrl.trackers.trackio:make', folder: made}"),
        ("trackers", "['asyncrl.trackers.trackio:open_tracker']"),
        ("algorithm.surrogate", "asyncrl.trackers.trackio:loss"),
        ("data.train", "[{path: rows.jsonl, columns: 'asyncrl.trackers.trackio:columns'}]"),
        ("verifying.options", "{parts: ['asyncrl.trackers.trackio:Verifier']}"),
    ],
)
def test_a_name_of_a_module_that_has_moved_is_refused_before_any_work(
    tmp_path: Path, key: str, value: str, command: Command
) -> None:
    def fetch(recipe: Recipe) -> Recipe:
        raise AssertionError("a model is fetched")

    # The model is of a hub: it would be fetched first.
    path, override = write_recipe(tmp_path, "nobody/nothing"), f"{key}={value}"
    said = r"asyncrl\.trackers\.trackio is asyncrl\.readers\.trackers\.trackio now"
    with pytest.raises(InputError, match=said):
        prepare_and_fetch(load_recipe(path, [override]), path, [override], fetch)
    assert re.search(said, command("check", path, override, code=2).err)
