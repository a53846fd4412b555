"""Preparing data and base model: before or after the model is fetched, and never longer than its command."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from fakes.commands import Command
from fakes.gguf_files import TOKENS, write_gguf
from fakes.hub import Hub, running_hub
from fakes.models import write_model
from fakes.newcomer import write_project
from fakes.processes import wait_for_end
from fakes.records import make_queue, make_task
from huggingface_hub import constants

from asyncrl.errors import InputError
from asyncrl.journal.starts import RunEnd, forget_end, record_end
from asyncrl.journal.writer import Journal
from asyncrl.launch.prepare import fetch_model, fetch_model_to_train, prepare_and_fetch
from asyncrl.model.folder import check_model_folder
from asyncrl.model.source import model_folder
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe
from asyncrl.run.folder import RunFolder, read_run_recipe

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


LATER = "beef" + "0" * 36
"""The commit of the hub's main branch after it moved."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """recipe.yaml names tiny/model, of which this machine has nothing yet; the current folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    write_project(folder)
    (folder / "model").rename(tmp_path / "hub")
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("path: model", "path: tiny/model"))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def hub(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """What HF_ENDPOINT and HF_HOME would say: huggingface_hub has read them when it was imported."""
    with running_hub(tiny__model=project.parent / "hub") as hub:
        of_file = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", of_file)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(project.parent / "cache" / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield hub


def snapshot(project: Path, hub: Hub) -> Path:
    return project.parent / "cache" / "hub" / "models--tiny--model" / "snapshots" / hub.commit


def begin_run(project: Path) -> None:
    """A run with one unfinished group."""
    recipe = fetch_model(load_recipe(project / "recipe.yaml"))
    with RunFolder(recipe.folder()) as folder:
        folder.open(recipe)
    queue = make_queue(recipe.folder())
    queue.announce(0)
    queue.admit(make_task())
    queue.journal.close()


def refusal(command: Command, *words: str) -> str:
    *_, said, page = command("check", "recipe.yaml", *words, code=2).err.splitlines()
    assert page.startswith("Read: ")
    return said


def test_check_fetches_a_model_of_a_hub_and_says_commit_and_folder(project: Path, hub: Hub):
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(project.parent / "cache")}
    command = [sys.executable, "-m", "asyncrl.commands.main", "check", "recipe.yaml"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = snapshot(project, hub)
    assert f"# model     tiny/model at commit {hub.commit}, in {folder}: Qwen3ForCausalLM" in done.stdout
    assert yaml.safe_load(done.stdout)["model"]["revision"] == hub.commit
    # What any process of a run calls.
    recipe = load_recipe(project / "recipe.yaml")
    assert model_folder(fetch_model(recipe).model) == folder == model_folder(recipe.model)


def test_a_misspelt_model_is_one_sentence(project: Path, hub: Hub, command: Command):
    said = refusal(command, "model.path=tiny/modell")
    assert said.startswith('model.path is "tiny/modell", but this machine has no such path and http')
    assert "is not a valid hub name" in refusal(command, "model.path=tiny/a..b")
    said = refusal(command, "model.path=model")
    assert said.startswith(f"model.path is {project}/model, which is not a folder.") and "or a hub id" in said


def test_a_model_that_did_not_arrive_in_full_is_not_used(
    project: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, command: Command
):
    section = load_recipe(project / "recipe.yaml").model
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "cannot be reached" in refusal(command)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.cut = {"model.safetensors"}
    assert refusal(command).startswith("tiny/model could not be fetched")
    assert snapshot(project, hub).is_dir()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "not all of its files" in refusal(command)
    with pytest.raises(InputError, match="`asyncrl check` and `asyncrl train` fetch or convert it"):
        model_folder(section)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.cut = set()
    command("check", "recipe.yaml")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    command("check", "recipe.yaml")


def test_a_run_keeps_the_commit_that_it_began_with(project: Path, hub: Hub, command: Command):
    begin_run(project)
    first, written = hub.commit, read_run_recipe(project / "runs" / "mine").model
    assert (written.path, written.revision) == ("tiny/model", first)
    hub.commit = LATER
    hub.requests.clear()
    # Also where the recipe names the branch, and from the run's own copy of it.
    for words in (["recipe.yaml"], ["recipe.yaml", "model.revision=main"], ["runs/mine/recipe.yaml"]):
        said = command("check", *words).out
        assert f"tiny/model at commit {first}" in said and "resumes at step 1" in said
    assert hub.requests == []
    said = refusal(command, "model.revision=v1")
    assert f"model.revision = '{first}', the recipe now says '{LATER}'" in said
    assert f"tiny/model at commit {LATER}" in command("check", "recipe.yaml", "run_folder=other").out


def test_a_run_that_lost_its_model_fetches_the_same_commit_unless_it_is_complete(project: Path, hub: Hub):
    begin_run(project)
    first, hub.commit = hub.commit, LATER
    shutil.rmtree(constants.HF_HUB_CACHE)
    hub.requests.clear()
    recipe = load_recipe(project / "recipe.yaml")
    journal = Journal(recipe.folder() / "journal.sqlite")
    record_end(journal, RunEnd(version=recipe.trainer.num_steps, reason="num_steps"))
    journal.barrier_blocking()
    recorded = fetch_model_to_train(recipe)
    assert recorded.model.revision == first and RunFolder(recipe.folder()).check(recorded)
    assert hub.requests == []
    journal.write(forget_end())
    journal.close()
    assert fetch_model_to_train(recipe) == recorded
    assert model_folder(recorded.model).name == first and hub.requests


def test_a_plan_needs_nothing_but_config_json(project: Path, hub: Hub, command: Command):
    assert "tiny/model: Qwen3ForCausalLM" in command("plan", "recipe.yaml").out
    fetched = [request for request in hub.requests if request.startswith("GET /tiny/model/resolve")]
    assert [request.rpartition("/")[2] for request in fetched] == ["config.json"]


def test_a_gguf_file_is_a_model(project: Path, monkeypatch: pytest.MonkeyPatch, command: Command):
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    original = write_model(project / "original", "Qwen2", vocab_size=len(TOKENS))
    write_gguf(project / "small.gguf", original, check_model_folder(original))
    first, again = (command("check", "recipe.yaml", "model.path=small.gguf") for _ in range(2))
    assert "# model     small.gguf, converted in cache/asyncrl/gguf/small-" in again.out
    assert "done    converting small.gguf" in first.err and "converting" not in again.err
    (project / "small.gguf").write_bytes(b"GGUF")
    assert "small.gguf cannot be read as GGUF" in refusal(command, "model.path=small.gguf")
