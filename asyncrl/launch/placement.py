"""Which process gets which GPUs of this machine: a recipe and the visible GPUs -> a map of all of them.

Owns CUDA_VISIBLE_DEVICES of servers and trainer ranks, and every refusal that concerns GPUs. No GPU belongs
to two processes, unless a trainer rank and a server take turns on it (placement.colocated).
"""

import dataclasses
import importlib.metadata
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from asyncrl.errors import InputError
from asyncrl.model.side_models import TEACHER, opponent_process
from asyncrl.recipe import Recipe
from asyncrl.serving.engine.hooks.cuda_toolkit import missing_part
from asyncrl.system.gpus import ORDER, VISIBLE, Gpu, find_gpus, hides_all
from asyncrl.system.machine import torch_is_cpu_build

_BEGINNING = "trainer "


def rank_name(rank: int) -> str:
    return f"{_BEGINNING}{rank}"


def is_rank_name(name: str) -> bool:
    """Whether the process of that name is a trainer rank, and no server."""
    return name.startswith(_BEGINNING)


Role = Literal["trainer", "servers", "evaluation", "teacher", "opponents"]
"""A key of `placement`."""
RUN: tuple[Role, ...] = ("trainer", "servers", "evaluation", "teacher", "opponents")
"""Roles that a run places, in the order in which they are served."""
HIDDEN = {VISIBLE: ""}
"""The environment of a process that computes on the CPU: it sees no GPU, whatever the machine has."""


@dataclass(frozen=True, slots=True)
class GpuMap:
    """The GPUs of each process; none of them has any on a CPU."""

    why_cpu: str | None = None
    """None where the processes have GPUs."""
    visible: tuple[Gpu, ...] = ()
    trainer: tuple[Gpu, ...] = ()
    """One per rank."""
    servers: tuple[tuple[Gpu, ...], ...] = ()
    """GPUs of each local rollout server, by its index."""
    evaluation: tuple[tuple[Gpu, ...], ...] = ()
    """GPUs of each evaluation server."""
    teacher: tuple[Gpu, ...] = ()
    """GPUs of the run's own teacher."""
    opponents: tuple[tuple[str, tuple[Gpu, ...]], ...] = ()
    """(process, its GPUs) of each opponent."""
    is_colocated: bool = False
    """Servers sleep while the trainer steps."""

    @property
    def uses_gpus(self) -> bool:
        return self.why_cpu is None

    def environment_of(self, name: str) -> dict[str, str]:
        """Variables to add for the process "trainer 1", "server 0", "evaluation server 0", "teacher" or
        "opponent rival".

        A server sees its GPUs alone, which the engine numbers from 0. A trainer rank sees those of all ranks,
        and LOCAL_RANK picks its own, as under torchrun, by which Megatron and NCCL are run everywhere else.
        NCCL reaches a neighbour's memory also where the neighbour's GPU is hidden, but code that opens it by
        its device number does not (CUDA IPC in torch, the overlapped communication of Transformer Engine).
        """
        if not self.uses_gpus:
            return HIDDEN
        gpus = self.trainer if is_rank_name(name) else dict(self.processes())[name]
        return {VISIBLE: ",".join(gpu.device for gpu in gpus), **ORDER}

    def lines(self) -> list[str]:
        """For `check` and `plan`: what is there, then a line per process."""
        turns = ["  servers sleep while the trainer steps (placement.colocated)"] if self.is_colocated else []
        if self.why_cpu is not None:
            return [f"every process on the CPU: {self.why_cpu}", *turns]
        used = {gpu.number for _, gpus in self.processes() for gpu in gpus}
        idle = [str(gpu.number) for gpu in self.visible if gpu.number not in used]
        rest = f"; unused: {', '.join(idle)}" if idle else ""
        return [
            f"{len(self.visible)} visible, {_kinds(self.visible)}{rest}",
            *(f"  {name:24s} {_names(gpus)}" for name, gpus in self.processes()),
            *turns,
        ]

    def processes(self) -> list[tuple[str, tuple[Gpu, ...]]]:
        ranks = [(rank_name(rank), (gpu,)) for rank, gpu in enumerate(self.trainer)]
        servers = [(f"server {index}", gpus) for index, gpus in enumerate(self.servers)]
        evaluation = [(f"evaluation server {index}", gpus) for index, gpus in enumerate(self.evaluation)]
        teacher = [(TEACHER, self.teacher)] if self.teacher else []
        return [*ranks, *servers, *evaluation, *teacher, *self.opponents]


def place(recipe: Recipe, roles: Sequence[Role] = RUN) -> GpuMap:
    """The map of the processes of `roles` on this machine. Raises InputError with the way out."""
    if "trainer" in roles and recipe.cluster.backend == "ray":
        return GpuMap("Ray gives each process its GPUs where it starts")
    if not any(gpus_needed(recipe, role) for role in roles):
        return GpuMap("none of them runs here")
    if recipe.placement.device == "cpu":
        return GpuMap("placement.device is cpu", is_colocated=_take_turns(recipe, roles))
    visible = find_gpus()
    if not visible:
        return GpuMap(_why_no_gpus(recipe), is_colocated=_take_turns(recipe, roles))
    if torch_is_cpu_build():
        raise InputError(
            f"this machine has {_kinds(visible)}, but torch {importlib.metadata.version('torch')} is a build "
            f"for CPUs, so all of the run would take place on the CPU. Install the CUDA build in a fresh "
            f"environment (`make setup GPU=1`), or set placement.device to cpu."
        )
    if any(gpus_needed(recipe, role) for role in roles if role != "trainer"):
        # A server would end in its first pass.
        if (missing := missing_part()) is not None:
            raise InputError(f"SGLang loads and compiles kernels on a GPU as it starts, but {missing}.")
    return assign(recipe, visible, roles)


def assign(recipe: Recipe, visible: Sequence[Gpu], roles: Sequence[Role] = RUN) -> GpuMap:
    """The map on given GPUs: named ones first, then the first free ones, in the order of `roles`.

    Raises InputError where one that the recipe names is not visible, or where there are too few.
    """
    if _take_turns(recipe, roles):
        return _assign_shared(recipe, visible, roles)
    named: dict[Role, list[int]] = {role: _numbers(recipe, role) for role in roles}
    for role, numbers in named.items():
        _check_visible(role, numbers, len(visible))
    taken = {number for numbers in named.values() for number in numbers}
    free = [gpu for gpu in visible if gpu.number not in taken]
    needs = {role: gpus_needed(recipe, role) for role in roles}
    if sum(needs[role] for role in roles if not named[role]) > len(free):
        raise InputError(_too_few(recipe, needs, len(visible)))
    given: dict[Role, tuple[Gpu, ...]] = {}
    for role in roles:
        if named[role]:
            given[role] = tuple(visible[number] for number in named[role])
        else:
            given[role], free = tuple(free[: needs[role]]), free[needs[role] :]
    size = recipe.serving.tensor_parallel_size
    return GpuMap(
        visible=tuple(visible),
        trainer=given.get("trainer", ()),
        servers=_dealt(given.get("servers", ()), size),
        evaluation=_dealt(given.get("evaluation", ()), size),
        teacher=given.get("teacher", ()),
        opponents=tuple(
            zip(
                map(opponent_process, recipe.agent.opponents),
                _dealt(given.get("opponents", ()), size),
                strict=False,
            )
        ),
    )


def _check_visible(role: Role, numbers: Sequence[int], num_visible: int) -> None:
    missing = next((number for number in numbers if number >= num_visible), None)
    if missing is not None:
        raise InputError(
            f"placement.{role} names GPU {missing}, but {_range(num_visible)} visible{_variable()}. Name "
            f"another one."
        )


def _take_turns(recipe: Recipe, roles: Sequence[Role]) -> bool:
    """Whether servers and trainer share GPUs. Without the trainer they have theirs alone."""
    return recipe.placement.colocated and "trainer" in roles


def _assign_shared(recipe: Recipe, visible: Sequence[Gpu], roles: Sequence[Role]) -> GpuMap:
    """Servers on GPUs of the trainer: those that the recipe names for them, else the first."""
    _check_cache(recipe)
    numbers, size = recipe.placement.servers, recipe.serving.tensor_parallel_size
    section = recipe.placement
    _check_visible("servers", numbers, len(visible))
    if numbers and not section.trainer:
        # Named for the servers alone: the trainer gets them first, then others.
        rest = [gpu.number for gpu in visible if gpu.number not in numbers]
        ranks = [*numbers, *rest][: recipe.trainer.num_processes]
        section = section.model_copy(update={"trainer": ranks})
    alone = recipe.model_copy(update={"placement": section.model_copy(update={"colocated": False})})
    found = assign(alone, visible, [role for role in roles if role != "servers"])
    given = [visible[number] for number in numbers] or found.trainer[: gpus_needed(recipe, "servers")]
    return dataclasses.replace(found, servers=_dealt(tuple(given), size), is_colocated=True)


def gpus_needed(recipe: Recipe, role: Role) -> int:
    """How many GPUs the local processes of a role take, each its own."""
    match role:
        case "trainer":
            return recipe.trainer.num_processes
        case "servers":
            num_servers = recipe.serving.num_started()
        case "evaluation":
            num_servers = recipe.evaluation.num_servers
        case "teacher":
            return recipe.teacher.num_started() * recipe.teacher.tensor_parallel_size
        case "opponents":
            num_servers = len(recipe.agent.opponents)
    return num_servers * recipe.serving.tensor_parallel_size


def _numbers(recipe: Recipe, role: Role) -> list[int]:
    numbers: list[int] = getattr(recipe.placement, role)
    return numbers


def _dealt(gpus: tuple[Gpu, ...], size: int) -> tuple[tuple[Gpu, ...], ...]:
    return tuple(gpus[first : first + size] for first in range(0, len(gpus), size))


def _why_no_gpus(recipe: Recipe) -> str:
    """Raises InputError where the recipe asks for some."""
    section = recipe.placement
    why = f"{VISIBLE} hides all GPUs" if hides_all() else "no NVIDIA GPU is here"
    asked = next((f"placement.{role} names GPUs" for role in RUN if _numbers(recipe, role)), None)
    if section.device == "gpu":
        asked = "placement.device is gpu"
    if asked is not None:
        raise InputError(
            f"{asked}, but {why}; nvidia-smi, which comes with the driver, lists none. Run on a machine with "
            f"GPUs, or set placement.device to cpu and name none."
        )
    return why


def _check_cache(recipe: Recipe) -> None:
    """An engine on a GPU takes nearly all of it for its cache as it starts, which is before the trainer."""
    serving = recipe.serving
    options = [argument.split("=")[0] for argument in serving.extra_arguments]
    if serving.max_total_tokens is None and "--mem-fraction-static" not in options:
        raise InputError(
            "placement.colocated is true but serving.max_total_tokens is not set: each server would take "
            "nearly all memory of its GPU, where the trainer keeps its weights, gradients and optimizer. Set "
            "serving.max_total_tokens; `asyncrl plan` says what fits."
        )


def _too_few(recipe: Recipe, needs: dict[Role, int], num_visible: int) -> str:
    keys = {
        "trainer": "trainer.num_processes",
        "servers": "serving.num_servers",
        "evaluation": "evaluation.num_servers",
        "teacher": "teacher.tensor_parallel_size",
        "opponents": "the number of agent.opponents",
    }
    parts = [f"{count} for {keys[role]}" for role, count in needs.items() if count]
    lower = " or ".join(keys[role] for role, count in needs.items() if count)
    return (
        f"this needs {sum(needs.values())} GPUs ({', '.join(parts)}), each process its own, and "
        f"{_range(num_visible)} visible{_variable()}. Lower {lower}, name servers on other machines in "
        f"serving.servers, let trainer and servers share GPUs with placement.colocated, or set "
        f"placement.device to cpu."
    )


def _range(count: int) -> str:
    return "only GPU 0 is" if count == 1 else f"GPUs 0 to {count - 1} are"


def _variable() -> str:
    value = os.environ.get(VISIBLE)
    return "" if value is None else f" ({VISIBLE} is {value})"


def _kinds(gpus: Sequence[Gpu]) -> str:
    """Such as "4 x NVIDIA H100 80GB HBM3 (80 GiB)"."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        memory = "" if gpu.memory_mib is None else f" ({gpu.memory_mib / 1024:.0f} GiB)"
        counts[f"{gpu.name}{memory}"] = counts.get(f"{gpu.name}{memory}", 0) + 1
    return ", ".join(f"{count} x {kind}" for kind, count in counts.items())


def _names(gpus: Sequence[Gpu]) -> str:
    """Numbers, and what nvidia-smi calls them where that is something else."""
    numbers = ", ".join(str(gpu.number) for gpu in gpus)
    devices = ", ".join(gpu.device for gpu in gpus)
    elsewhere = "" if numbers == devices else f" (nvidia-smi's {devices})"
    return f"GPU {numbers}{elsewhere}"
