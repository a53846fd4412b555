"""Which process gets which GPUs: the map, what is refused, and what each child process really sees."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.gpus import H100, row, whole_gpus, write_nvidia_smi
from fakes.recipes import make_recipe

from asyncrl.errors import InputError
from asyncrl.launch.placement import GpuMap, assign, place
from asyncrl.launch.servers import LocalServers, server_needs
from asyncrl.launch.site.site import ChildProcess, LocalSite
from asyncrl.launch.trainers import TrainerRanks
from asyncrl.recipe import Recipe
from asyncrl.serving.engine.hooks.cuda_toolkit import HEADER
from asyncrl.serving.sglang.http import new_session
from asyncrl.system.gpus import Gpu

SIZES: dict[str, dict[str, Any]] = {
    "trainer": {"num_processes": 2},
    "serving": {"num_servers": 3},
    "evaluation": {"every_steps": 0, "num_servers": 1},
}
CUDA_BUILD, CPU_BUILD = "2.14.1", "2.13.0+cpu"
SAY_ENVIRONMENT = "#!/bin/sh\nexec /usr/bin/env\n"


def recipe_with(**sections: dict[str, Any]) -> Recipe:
    return make_recipe(Path("m"), **{**SIZES, **sections})


def numbers(found: GpuMap) -> tuple[list[int], list[list[int]], list[list[int]]]:
    def each(processes: tuple[tuple[Gpu, ...], ...]) -> list[list[int]]:
        return [[gpu.number for gpu in gpus] for gpus in processes]

    return [gpu.number for gpu in found.trainer], each(found.servers), each(found.evaluation)


@pytest.fixture(autouse=True)
def header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine where Triton can compile, whatever this one has."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("asyncrl.serving.engine.hooks.cuda_toolkit.HEADER", tmp_path / "Python.h")


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four GPUs and a CUDA build of torch."""
    write_nvidia_smi(tmp_path / "bin", [row(index) for index in range(4)])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    use_torch(monkeypatch, CUDA_BUILD)


def use_torch(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)


def test_trainer_ranks_come_first_then_servers_then_evaluation_servers() -> None:
    found = assign(recipe_with(), whole_gpus(8))
    assert numbers(found) == ([0, 1], [[2], [3], [4]], [[5]])
    assert found.lines() == [
        f"8 visible, 8 x {H100} (80 GiB); unused: 6, 7",
        "  trainer 0                GPU 0",
        "  trainer 1                GPU 1",
        "  server 0                 GPU 2",
        "  server 1                 GPU 3",
        "  server 2                 GPU 4",
        "  evaluation server 0      GPU 5",
    ]


def test_what_the_recipe_names_is_given_in_its_order_and_the_rest_is_filled_up() -> None:
    section = {"trainer": [7, 0], "evaluation": [1]}
    assert numbers(assign(recipe_with(placement=section), whole_gpus(8))) == ([7, 0], [[2], [3], [4]], [[1]])


@pytest.mark.parametrize(
    ("section", "num_servers", "expected"),
    [
        ({}, 2, ([0, 1], [[0], [1]], [[2]])),
        ({}, 1, ([0, 1], [[0]], [[2]])),
        ({"trainer": [3, 2]}, 2, ([3, 2], [[3], [2]], [[0]])),
        ({"trainer": [3, 2], "servers": [2]}, 1, ([3, 2], [[2]], [[0]])),
        # Named for the servers alone, the trainer has them too.
        ({"servers": [3]}, 1, ([3, 0], [[3]], [[1]])),
        ({"evaluation": [0]}, 2, ([1, 2], [[1], [2]], [[0]])),
    ],
)
def test_colocated_servers_have_gpus_of_the_trainer(
    section: dict[str, Any], num_servers: int, expected: Any
) -> None:
    serving = {"num_servers": num_servers, "max_total_tokens": 4096}
    recipe = recipe_with(placement={"colocated": True, **section}, serving=serving)
    found = assign(recipe, whole_gpus(4))
    assert numbers(found) == expected
    assert found.environment_of("server 0")["CUDA_VISIBLE_DEVICES"] == str(expected[1][0][0])
    assert found.lines()[-1] == "  servers sleep while the trainer steps (placement.colocated)"


def test_one_gpu_is_enough_for_a_colocated_run_and_a_server_alone_has_it_to_itself() -> None:
    cache = {"max_total_tokens": 4096}
    recipe = make_recipe(Path("m"), placement={"colocated": True}, serving=cache)
    found = assign(recipe, whole_gpus(1))
    assert numbers(found) == ([0], [[0]], [])
    alone = assign(recipe, whole_gpus(1), ("servers",))
    assert numbers(alone) == ([], [[0]], []) and not alone.is_colocated
    with pytest.raises(InputError, match="placement.servers names GPU 5, but only GPU 0 is visible"):
        section = {"colocated": True, "servers": [5]}
        assign(make_recipe(Path("m"), placement=section, serving=cache), whole_gpus(1))


def test_colocated_servers_must_say_how_much_of_a_gpu_they_take() -> None:
    def colocated(**serving: Any) -> Recipe:
        return make_recipe(Path("m"), placement={"colocated": True}, serving=serving)

    with pytest.raises(InputError, match="colocated is true but serving.max_total_tokens is not set"):
        assign(colocated(), whole_gpus(1))
    assert assign(colocated(extra_arguments=["--mem-fraction-static=0.3"]), whole_gpus(1)).is_colocated
    # A server alone has the GPU to itself.
    assert assign(colocated(), whole_gpus(1), ("servers",)).servers


def test_external_servers_take_no_gpu_here() -> None:
    found = assign(recipe_with(serving={"servers": ["http://a:1"]}), whole_gpus(3))
    assert numbers(found) == ([0, 1], [], [[2]])


def test_a_server_may_have_several_gpus_and_without_a_trainer_begins_with_the_first() -> None:
    recipe = recipe_with(serving={"num_servers": 2, "tensor_parallel_size": 2})
    assert numbers(assign(recipe, whole_gpus(4), ("servers",))) == ([], [[0, 1], [2, 3]], [])
    assert numbers(assign(recipe, whole_gpus(8))) == ([0, 1], [[2, 3], [4, 5]], [[6, 7]])


@pytest.mark.parametrize(
    ("section", "count", "said"),
    [
        ({}, 5, r"6 GPUs \(2 for trainer.num_processes, 3 for .*, 1 for .*\).* and GPUs 0 to 4 are visible"),
        ({}, 1, r"only GPU 0 is visible.* Lower trainer.num_processes or .* or set placement.device to cpu"),
        ({"evaluation": [0]}, 5, "6 GPUs"),
        ({"trainer": [0, 8]}, 8, r"placement.trainer names GPU 8, but GPUs 0 to 7 are visible.* another one"),
        ({"servers": [5, 6, 7]}, 6, "placement.servers names GPU 6, but GPUs 0 to 5 are visible"),
    ],
)
def test_too_few_gpus_and_ones_that_do_not_exist_are_refused(
    section: dict[str, Any], count: int, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        assign(recipe_with(placement=section), whole_gpus(count))


def test_a_build_of_torch_for_cpus_next_to_a_gpu_is_refused(
    four_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(monkeypatch, CPU_BUILD)
    with pytest.raises(
        InputError, match=rf"4 x {H100} .*torch 2\.13\.0\+cpu .*make setup GPU=1.*device to cpu"
    ):
        place(recipe_with())
    found = place(recipe_with(placement={"device": "cpu"}))
    assert found.lines() == ["every process on the CPU: placement.device is cpu"]
    colocated = {"device": "cpu", "colocated": True}
    found = place(recipe_with(placement=colocated, serving={"num_servers": 2}))
    assert found.lines()[1:] == ["  servers sleep while the trainer steps (placement.colocated)"]


def test_the_cpu_of_a_machine_with_gpus_is_used_where_the_recipe_or_the_shell_says_so(
    four_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = place(recipe_with(placement={"device": "cpu"}))
    assert (
        found.environment_of("trainer 0") == found.environment_of("server 2") == {"CUDA_VISIBLE_DEVICES": ""}
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert place(recipe_with()).why_cpu == "CUDA_VISIBLE_DEVICES hides all GPUs"


def test_what_runs_elsewhere_needs_nothing_here(four_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    use_torch(monkeypatch, CPU_BUILD)
    recipe = recipe_with(serving={"servers": ["http://a:1"]})
    assert place(recipe, ("servers",)).lines() == ["every process on the CPU: none of them runs here"]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"device": "gpu"}, "placement.device is gpu, but CUDA_VISIBLE_DEVICES hides all GPUs"),
        ({"trainer": [0, 1]}, "placement.trainer names GPUs, but .* set placement.device to cpu"),
    ],
)
def test_a_recipe_for_gpus_is_refused_without_them(
    section: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(InputError, match=said):
        place(recipe_with(placement=section))


async def seen_by_children(
    recipe: Recipe, gpus: GpuMap, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, dict[str, str]]:
    """Name of each process -> its environment, as a real child of the launcher's own classes prints it."""
    program = folder / "say-environment"
    program.write_text(SAY_ENVIRONMENT)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    site = LocalSite(recipe.cluster, gpus)
    async with new_session() as session:
        servers = LocalServers(
            recipe,
            model_folder=folder,
            logs=folder,
            session=session,
            site=site,
            places=site.places(server_needs(recipe, num_evaluation=recipe.evaluation.num_servers)),
            num_evaluation=recipe.evaluation.num_servers,
        )
        for process in servers.processes.values():
            await process.start()
        trainers = TrainerRanks(recipe, run_folder=folder, logs=folder, site=site)
        await trainers.start("http://nobody:1")
        await trainers.wait()
        children = [*servers.processes.values(), *trainers.ranks]
        return {child.name: await environment_of(child) for child in children}


async def environment_of(child: ChildProcess) -> dict[str, str]:
    assert await child.wait() == 0
    lines = child.log_path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize(
    ("variable", "device", "expected"),
    [
        (None, "auto", ["0,1", "0,1", "2", "3", "4", "5"]),
        # Six of the eight, in a scheduler's order.
        ("7,6,5,4,3,2", "auto", ["7,6", "7,6", "5", "4", "3", "2"]),
        (None, "cpu", [""] * 6),
    ],
)
async def test_every_child_sees_its_own_gpus_and_no_others(
    variable: str | None, device: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_nvidia_smi(tmp_path / "bin", [row(index) for index in range(8)])
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    use_torch(monkeypatch, CUDA_BUILD)
    recipe = recipe_with(placement={"device": device})
    found = await seen_by_children(recipe, place(recipe), tmp_path, monkeypatch)
    names = ["trainer 0", "trainer 1", "server 0", "server 1", "server 2", "evaluation server 0"]
    assert [found[name]["CUDA_VISIBLE_DEVICES"] for name in names] == expected
    assert [found[name]["LOCAL_RANK"] for name in names[:2]] == ["0", "1"]
    # CUDA numbers GPUs by speed unless it is told to number them as nvidia-smi does.
    order = None if device == "cpu" else "PCI_BUS_ID"
    assert {found[name].get("CUDA_DEVICE_ORDER") for name in names} == {order}
    # The engine of a server without GPUs is the one for CPUs.
    assert [name for name in names if "SGLANG_USE_CPU_ENGINE" in found[name]] == (
        names[2:] if device == "cpu" else []
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [("c++", r"no C\+\+ compiler .* install g\+\+, or set CXX"), ("nvcc", "no CUDA compiler")],
)
def test_servers_on_gpus_are_refused_without_the_compilers_that_they_call(
    name: str, why: str, four_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.serving.engine.hooks.cuda_toolkit.SYSTEM", tmp_path / "none")
    recipe = make_recipe(Path("m"))
    assert place(recipe).servers
    (tmp_path / "bin" / name).unlink()
    wanted = f"SGLang loads and compiles kernels on a GPU as it starts, but {why}"
    with pytest.raises(InputError, match=wanted):
        place(recipe)
    # A trainer alone compiles nothing.
    assert place(recipe, ["trainer"]).trainer


async def test_children_find_the_programs_of_their_environment(tmp_path: Path) -> None:
    child = ChildProcess(
        "child", ["-c", "import os; print(os.environ['PATH'])"], environment={}, log_path=tmp_path / "log"
    )
    await child.start()
    assert await child.wait() == 0
    first, _, rest = (tmp_path / "log").read_text().strip().partition(os.pathsep)
    assert (first, rest) == (str(Path(sys.executable).parent), os.environ["PATH"])


def asyncrl(*arguments: str, path: Path, torch: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, on a machine with that nvidia-smi and that build of torch."""
    metadata = path / "site" / "torch-0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True, exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}\n")
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    return subprocess.run(
        [sys.executable, "-m", "asyncrl.commands.main", *arguments],
        env=environment
        | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )


needs_header = pytest.mark.skipif(
    not HEADER.is_file(), reason=f"{HEADER} is missing: the headers of this Python"
)


@pytest.fixture
def described(tmp_path: Path) -> tuple[str, Path]:
    """A recipe and the folder of an nvidia-smi that lists two GPUs."""
    (tmp_path / "model").mkdir()
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = sizes | {"architectures": ["LlamaForCausalLM"], "intermediate_size": 64, "vocab_size": 96}
    config |= {"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e4}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "name: test\nmodel: {path: model}\ndata: {train: none.jsonl}\nevaluation: {every_steps: 0}\n"
    )
    write_nvidia_smi(tmp_path / "bin", [row(index) for index in range(2)])
    return str(recipe), tmp_path / "bin"


@needs_header
@pytest.mark.parametrize(
    "command", ["check", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("plan", "train"))]
)
def test_check_plan_and_train_say_why_nothing_would_run(described: tuple[str, Path], command: str) -> None:
    recipe, path = described
    done = asyncrl(command, recipe, "trainer.num_processes=2", path=path, torch=CUDA_BUILD)
    assert done.returncode == 2 and "needs 3 GPUs (2 for trainer.num_processes" in done.stderr
    done = asyncrl(command, recipe, path=path, torch=CPU_BUILD)
    assert done.returncode == 2 and "is a build for CPUs" in done.stderr
