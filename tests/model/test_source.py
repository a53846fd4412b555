"""Models by folder, by GGUF file and by hub id: a real huggingface_hub asks a hub of this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.gguf_files import TOKENS, write_gguf
from fakes.hub import Hub, running_hub
from fakes.models import write_model

from asyncrl.errors import InputError
from asyncrl.model.folder import check_model_folder
from asyncrl.model.source import model_folder, resolve
from asyncrl.observe.terminal.stage import stage
from asyncrl.recipe import Model
from asyncrl.system.hub import is_hub_id

SCRIPT = """
import sys
from asyncrl.errors import InputError
from asyncrl.model.source import resolve
from asyncrl.observe.terminal.stage import stage
from asyncrl.recipe import Model
try:
    source = resolve(Model(path=sys.argv[1], revision=sys.argv[2] or None), stage=stage)
    print(source.folder, source.commit)
except InputError as error:
    print("InputError:", error)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model(tmp_path_factory.mktemp("model") / "tiny")
    (folder / "pytorch_model.bin").write_bytes(b"weights in another form")
    return folder


def fetched(hub: Hub, home: Path, hub_id: str = "tiny/model", revision: str = "", **variables: str) -> str:
    """What a process of its own says: huggingface_hub reads its environment when it is imported."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), **variables}
    command = [sys.executable, "-c", SCRIPT, hub_id, revision]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_model_of_a_hub_is_fetched_once_and_pinned_to_its_commit(model: Path, tmp_path: Path):
    with running_hub(tiny__model=model) as hub:
        folder, commit = fetched(hub, tmp_path).split()
        assert commit == hub.commit and check_model_folder(Path(folder)) == check_model_folder(model)
        assert not (Path(folder) / "pytorch_model.bin").exists()
        hub.requests.clear()
        assert fetched(hub, tmp_path, revision=hub.commit) == f"{folder} {commit}"
        assert not [request for request in hub.requests if request.startswith("GET /tiny/model/resolve")]
    # The hub is gone; what was fetched is still there.
    assert fetched(hub, tmp_path) == f"{folder} {commit}"
    assert fetched(hub, tmp_path, HF_HUB_OFFLINE="1") == f"{folder} {commit}"


def test_a_download_that_broke_off_is_a_clear_error_and_resumes(model: Path, tmp_path: Path):
    with running_hub(tiny__model=model) as hub:
        hub.cut = {"model.safetensors"}
        said = fetched(hub, tmp_path, HF_HUB_DOWNLOAD_TIMEOUT="1")
        assert said.startswith("InputError: tiny/model could not be fetched") and "Run it again" in said
        hub.cut = set()
        folder, _ = fetched(hub, tmp_path).split()
        assert check_model_folder(Path(folder)) == check_model_folder(model)


@pytest.mark.parametrize(
    ("hub_id", "revision", "sentence"),
    [
        ("tiny/modell", "", 'model.path is "tiny/modell", but this machine has no such path and http'),
        ("tiny/gated", "", "whose owner asks you to accept terms first. Open http"),
        ("tiny/model", "v9", 'model.path is "tiny/model" at revision "v9", which it does not have.'),
    ],
)
def test_what_the_hub_refuses_is_a_sentence_with_the_way_out(
    hub_id: str, revision: str, sentence: str, model: Path, tmp_path: Path
):
    with running_hub(tiny__model=model, tiny__gated=model) as hub:
        hub.gated = {"tiny/gated"}
        assert sentence in fetched(hub, tmp_path, hub_id, revision)


def test_without_a_hub_and_without_a_copy_the_sentence_says_so(tmp_path: Path):
    with running_hub() as hub:
        pass
    for variables in ({}, {"HF_HUB_OFFLINE": "1"}):
        said = fetched(hub, tmp_path, **variables)
        assert said.startswith('InputError: model.path is "tiny/model"') and "cannot be reached" in said


def test_a_folder_wins_over_a_hub_id_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("Qwen/Qwen2.5-0.5B")
    (tmp_path / "Qwen" / "Qwen2.5-0.5B").mkdir(parents=True)
    assert not is_hub_id("Qwen/Qwen2.5-0.5B")
    assert is_hub_id("Qwen/Qwen2.5-0.5B", tmp_path / "Qwen")
    assert not any(is_hub_id(path) for path in ("model", "/a/b", "./a/b", "../a/b", "a/b/c", "~/b", "a/.b"))


def test_a_folder_has_no_revision(tmp_path: Path):
    assert resolve(Model(path=str(tmp_path)), stage=stage).folder == tmp_path
    with pytest.raises(InputError, match="only hub models have revisions"):
        resolve(Model(path=str(tmp_path), revision="main"), stage=stage)


def test_a_gguf_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    original = write_model(tmp_path / "original", "Qwen2", vocab_size=len(TOKENS))
    shape = check_model_folder(original)
    file = write_gguf(tmp_path / "small.gguf", original, shape)
    section = Model(path=str(file))
    with pytest.raises(InputError, match="is not on this machine yet"):
        model_folder(section)
    folder = resolve(section, stage=stage).folder
    assert check_model_folder(folder) == shape and model_folder(section) == folder
    made = (folder / "config.json").stat().st_mtime_ns
    assert resolve(section, stage=stage).folder == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
