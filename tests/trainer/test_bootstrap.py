"""How a rank starts and ends: the device it chooses, what makes it deterministic, its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fakes.gpus import row, write_nvidia_smi
from fakes.launch_trainer import finish_trainer, read_log, start_trainer
from fakes.models import write_model
from fakes.recipes import make_recipe
from fakes.template import Template

from asyncrl.errors import DiskError, Diverged
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import dump_recipe
from asyncrl.trainer.bootstrap import DETERMINISTIC, make_deterministic
from asyncrl.wire.messages import Ending, find_ending

pytestmark = pytest.mark.usefixtures("forked_trainers")

NOBODY = "http://127.0.0.1:9"
RANK = "from fakes.ending_ranks import *\ndef work():\n    {}\nsys.exit(run_rank(work))\n"
FULL_DISK = """
from fakes.ending_ranks import *
with contextlib.suppress(OSError):
    print('a line that finds no room', file=sys.stderr)
end_on_full_disk(DiskError('no room'))
"""
CURABLE = [
    ("raise InputError('wrong key')", 2, "wrong key", None),
    (
        "raise Diverged('lower the rate')",
        Diverged.EXIT_CODE,
        "Diverged: lower the rate",
        Ending("Diverged", "lower the rate"),
    ),
    ("raise DiskError('no room')", DiskError.EXIT_CODE, "DiskError: no room", Ending("DiskError", "no room")),
]
ALONE = "from fakes.ending_ranks import *\ndef work():\n    raise Diverged('lower the rate')\n"
ALONE += "sys.exit(run_rank(work, has_launcher=False))\n"
OURS = "raise KeyError('ours')"
Ended = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def ended(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Exit code and standard error by the body of the work, and of a full disk by the file."""
    folder = tmp_path_factory.mktemp("ranks")
    bodies = [body for body, *_ in CURABLE] + [OURS]
    jobs = [(RANK.format(body), str(folder / str(number))) for number, body in enumerate(bodies)]
    jobs.append((ALONE, str(folder / "alone")))
    jobs += [(FULL_DISK, file) for file in ("/dev/full", str(folder / "room"))]
    with (folder / "codes").open("wb") as output:
        process = template.start(
            "fakes.ending_ranks", [json.dumps(jobs)], environment=dict(os.environ), output=output
        )
    assert process.wait(120) == 0, (folder / "codes").read_text()
    said = ["" if file == "/dev/full" else Path(file).read_text() for _, file in jobs]
    codes = map(int, (folder / "codes").read_text().split())
    return dict(zip([*bodies, ALONE, "/dev/full", "room"], zip(codes, said, strict=True), strict=True))


@pytest.mark.parametrize(("body", "code", "line", "ending"), CURABLE)
def test_an_error_that_the_user_can_cure_is_one_line_a_code_and_for_some_a_record(
    ended: Ended, body: str, code: int, line: str, ending: Ending | None
):
    found, said = ended[body]
    first, *rest = said.splitlines()
    assert (found, first, find_ending(said), len(rest)) == (code, line, ending, int(ending is not None))


def test_without_a_launcher_the_line_for_people_is_all(ended: Ended):
    assert ended[ALONE] == (Diverged.EXIT_CODE, "Diverged: lower the rate\n")


def test_a_fault_of_ours_keeps_its_traceback(ended: Ended):
    code, said = ended[OURS]
    assert code == 1 and said.startswith("Traceback")


def test_a_full_disk_is_told_by_the_exit_code_also_where_the_log_takes_nothing(ended: Ended):
    assert ended["/dev/full"][0] == DiskError.EXIT_CODE
    said = ended["room"][1]
    assert said.splitlines()[:2] == ["a line that finds no room", "DiskError: no room"]
    assert find_ending(said) == Ending("DiskError", "no room")


def refusal(run: Path, recipe: Recipe | None) -> str:
    assert finish_trainer(start_trainer(run, NOBODY, recipe)) == [2]
    (line,) = read_log(run).splitlines()
    return line


def test_a_model_folder_that_is_none_is_refused(tmp_path: Path):
    line = refusal(tmp_path / "run", make_recipe(tmp_path / "nowhere"))
    assert line.startswith(f"model.path is {tmp_path / 'nowhere'}, which is not a folder")


def test_a_run_folder_without_recipe_is_refused(tmp_path: Path):
    assert "There is no recipe at" in refusal(tmp_path / "run", None)


def test_more_processes_in_the_recipe_than_were_started_are_refused(tmp_path: Path):
    folder, run = write_model(tmp_path / "model"), tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text(dump_recipe(make_recipe(folder, trainer={"num_processes": 2})))
    assert "WORLD_SIZE is 1 but trainer.num_processes is 2" in refusal(run, None)


def test_a_loss_of_ones_own_that_breaks_the_contract_is_refused(tmp_path: Path):
    (tmp_path / "own.py").write_text("def loss(inputs, algorithm): return inputs.current.sum()\n")
    recipe = make_recipe(write_model(tmp_path / "model"), algorithm={"surrogate": f"{tmp_path}/own.py:loss"})
    assert "own.py:loss gave () for 6 tokens; expected" in refusal(tmp_path / "run", recipe)


def chosen(device: str, machine: Path) -> subprocess.CompletedProcess[str]:
    """What a rank for `device` says on a machine with a GPU, where torch claims to be a CUDA build and sees
    none: as with a driver that is too old."""
    write_nvidia_smi(machine, [row(0)])
    metadata = machine / "torch-0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.14.1\n")
    code = (
        "import os, sys\n"
        "from asyncrl.trainer.bootstrap import _choose_device, run_rank\n"
        "def work():\n"
        f"    _choose_device({device!r})\n"
        "    print(repr(os.environ['CUDA_VISIBLE_DEVICES']), flush=True)\n"
        "    os._exit(0)\n"
        "sys.exit(run_rank(work))\n"
    )
    environment = {"PATH": str(machine), "PYTHONPATH": str(machine), "CUDA_VISIBLE_DEVICES": "0"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment
    )


def test_a_rank_that_has_gpus_and_cannot_use_them_ends_before_it_trains_on_the_cpu(tmp_path: Path):
    ended = chosen("auto", tmp_path)
    assert ended.returncode == 2
    assert "cannot use the GPUs of this machine (CUDA_VISIBLE_DEVICES: 0). Usually the driver" in ended.stderr


def test_packages_of_servers_that_fail_as_they_are_imported_do_not_end_a_rank(tmp_path: Path):
    # Megatron expects an ImportError of those that are not there, and of nothing else.
    (tmp_path / "deep_ep.py").write_text("raise AssertionError('no CUDA toolkit')\n")
    code = (
        "import asyncrl.trainer.network.model\n"
        "from megatron.core.transformer.moe.fused_a2a import HAVE_DEEP_EP\n"
        "print(HAVE_DEEP_EP)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_rank_for_the_cpu_sees_no_gpu_whoever_started_it(tmp_path: Path):
    assert chosen("cpu", tmp_path).stdout == "''\n"


@pytest.mark.exhaustive
def test_deterministic_steps_use_nothing_that_torch_cannot_repeat(tmp_path: Path):
    # torch raises where an operation has no deterministic form.
    command = [sys.executable, "-m", "fakes.deterministic_steps", str(write_model(tmp_path)), "float32", "40"]
    paths = {"PYTHONPATH": str(Path(__file__).parents[1])}
    run = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    first, second = json.loads(run.stdout.splitlines()[-1])
    assert first["grad_norm"] > 0 and second["loss"] != first["loss"]


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
