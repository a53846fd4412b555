"""Memory of the processes of a run: what they need, what they hold, and how near their limit is."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

import psutil

from asyncrl.launch.placement import GpuMap, is_rank_name
from asyncrl.model.dtype import find_dtype, kept_version_bytes, uses_gpu
from asyncrl.model.layout import check_layout
from asyncrl.model.memory import AdamStates, RankMemory, rank_memory, server_memory
from asyncrl.model.shape import ModelShape
from asyncrl.model.side_models import known_shape, side_processes, side_recipe
from asyncrl.model.source import model_folder
from asyncrl.recipe import Recipe
from asyncrl.system.gpus import Gpu
from asyncrl.system.machine import GroupMemory, group_memory

FULL_SHARE = 0.9
"""Usable share of a device's memory: the rest is the allocator's and the communication library's."""
SERVER_PROCESS_BYTES = 900 * 2**20
"""A server's processes without weights and cache, as measured on a CPU."""
TRAINER_PROCESS_BYTES = 600 * 2**20
"""A trainer rank without what `rank_memory` counts."""


def trainer_memory(
    recipe: Recipe, shape: ModelShape, *, longest_prompt: int | None = None, on_gpu: bool | None = None
) -> RankMemory:
    """Memory of the fullest trainer rank. Raises InputError for a layout that cannot work. `on_gpu` says what
    it computes on, where that is not this machine: there Adam's states are divided by default.

    `longest_prompt`, in tokens, where the data are known: it and the longest response bound a sequence. Else
    data.max_prompt_tokens and the response do, or the context alone: it may be longer for evaluations.
    """
    return rank_memory(
        shape,
        dtype=find_dtype(recipe, shape).name,
        tokens_per_micro_batch=largest_micro_batch(recipe, shape, longest_prompt),
        layout=check_layout(recipe, shape, on_gpu=on_gpu),
        has_critic=recipe.algorithm.needs_critic(),
        freezes_critic_attention=recipe.algorithm.needs_critic() and recipe.critic.frozen == "attention",
        has_reference=recipe.algorithm.kl.coefficient > 0 or recipe.stage == "dpo",
        saves_reference=recipe.algorithm.kl.refresh_steps > 0,
        saves_in_background=recipe.trainer.saves_in_background,
        num_past_versions=recipe.rollout.max_staleness if recipe.trainer.splits_staleness else 0,
        float32_logits=recipe.model.float32_logits,
        adam=AdamStates.of(recipe.trainer),
        lora=recipe.model.lora,
        on_gpu=uses_gpu(recipe) if on_gpu is None else on_gpu,
    )


def largest_micro_batch(recipe: Recipe, shape: ModelShape, longest_prompt: int | None = None) -> int:
    """Packed tokens: trainer.tokens_per_micro_batch or one trajectory, whichever is more, but no more than a
    whole batch has, where each group holds its prompt once. Where the chat template renders histories, or
    contexts are summed up, branches repeat what was sampled."""
    context = recipe.model.context_tokens or shape.max_positions
    has_summaries = recipe.turns.summarize is not None
    response = recipe.longest_response() if has_summaries else min(recipe.longest_response(), context - 1)
    unknown = min(max(1, context - response), recipe.data.max_prompt_tokens or context)
    prompt = unknown if longest_prompt is None else min(longest_prompt, context - 1)
    rewritten = recipe.rollout.max_new_tokens if recipe.renders_history() else 0
    if has_summaries:
        # A context begins with at most half of summarize.at_tokens, and ends after the other half or more.
        rewritten, context = response, prompt + response
    batch = recipe.groups_per_step() * (prompt + recipe.rollout.samples_per_group * (response + rewritten))
    trajectory = min(context, prompt + response) + rewritten
    return min(batch, max(recipe.trainer.tokens_per_micro_batch, trajectory))


def num_side_ranks(recipe: Recipe) -> int:
    """Ranks of the servers that the run starts for side models."""
    return sum(side_recipe(recipe, name).serving.tensor_parallel_size for name in side_processes(recipe))


def num_local_servers(recipe: Recipe) -> int:
    """Rollout and evaluation servers that the run starts itself."""
    return recipe.serving.num_started() + recipe.evaluation.num_servers


def side_bytes(own: Recipe, *, on_gpu: bool = False, shape: ModelShape | None = None) -> int:
    """One rank of the server of the side model whose recipe is `own`, where it computes, its process apart.
    Weights alone where the trainer does not know its architecture. `shape` is read from its folder where it
    is not given. Raises InputError."""
    folder = None if shape is not None else model_folder(own.model)
    shape = shape if folder is None else known_shape(folder)
    if shape is None:
        assert folder is not None
        files = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        return (1 if on_gpu else 2) * files // own.serving.tensor_parallel_size
    memory = server_memory(shape, own, on_gpu=on_gpu)
    # On a CPU a second copy of the weights, in the layout of the products.
    return sum(memory.values()) + (0 if on_gpu else memory["weights"])


def gpu_bytes(
    recipe: Recipe, shape: ModelShape, gpus: GpuMap, *, longest_prompt: int | None = None
) -> list[tuple[Gpu, int, str]]:
    """(GPU, bytes, whose they are) of each GPU that something computes on. Where trainer and server take
    turns, of the turn that needs more: next to a server there is a rank's state between two steps."""
    memory = trainer_memory(recipe, shape, longest_prompt=longest_prompt, on_gpu=True)
    rank = memory.computing(recipe.trainer.recompute)
    server = sum(server_memory(shape, recipe, on_gpu=True).values())
    sides = {name: side_bytes(side_recipe(recipe, name), on_gpu=True) for name in side_processes(recipe)}
    owners: dict[Gpu, list[str]] = {}
    for name, given in gpus.processes():
        for gpu in given:
            owners.setdefault(gpu, []).append(name)

    def needed(names: list[str]) -> int:
        if len(names) > 1:
            return max(rank, memory.resident() + server)
        if is_rank_name(names[0]):
            return rank
        return sides.get(names[0], server)

    return [(gpu, needed(names), " with ".join(names)) for gpu, names in owners.items()]


def host_bytes(recipe: Recipe, shape: ModelShape) -> int:
    """Host memory of a machine whose GPUs compute: processes, what checkpoints are written from, the version
    that the next is compared with, Adam where it is on the host, and past versions."""
    memory = trainer_memory(recipe, shape)
    ranks_per_server = recipe.serving.tensor_parallel_size
    return (
        recipe.trainer.num_processes * (TRAINER_PROCESS_BYTES + memory.copies() + memory.beside())
        + kept_version_bytes(recipe, shape)
        + num_local_servers(recipe) * ranks_per_server * SERVER_PROCESS_BYTES
        + num_side_ranks(recipe) * SERVER_PROCESS_BYTES
    )


def run_bytes(recipe: Recipe, shape: ModelShape, *, longest_prompt: int | None = None) -> int:
    """All servers and trainer ranks on one CPU machine; `longest_prompt` as in `trainer_memory`."""
    memory = trainer_memory(recipe, shape, longest_prompt=longest_prompt)
    num_ranks, num_servers = recipe.trainer.num_processes, num_local_servers(recipe)
    processes = num_ranks * TRAINER_PROCESS_BYTES + num_servers * SERVER_PROCESS_BYTES
    processes += kept_version_bytes(recipe, shape)
    for name in side_processes(recipe):
        own = side_recipe(recipe, name)
        processes += SERVER_PROCESS_BYTES + own.serving.tensor_parallel_size * side_bytes(own)
    training = num_ranks * memory.total(recipe.trainer.recompute)
    serving = server_memory(shape, recipe)
    # On a CPU a second copy of the weights, in the layout of the products.
    server = recipe.serving.tensor_parallel_size * (sum(serving.values()) + serving["weights"])
    if not recipe.placement.colocated:
        return processes + training + num_servers * server
    # Evaluation servers never sleep.
    awake, num_sleeping = recipe.evaluation.num_servers * server, recipe.serving.num_servers
    generating = (
        num_ranks * (memory.resident() + memory.copies() + memory.past_versions) + num_sleeping * server
    )
    return processes + awake + max(training, generating)


# A process is told by its command line. Those on other machines are not seen. Resident sets count what
# processes share in each of them: a growth is one, a level is an upper bound.
GIB = 2**30
TRAINER = "asyncrl.trainer.main"
SERVER = "sglang.launch_server"


class MemoryMeter:
    def __init__(self) -> None:
        self._row: dict[str, float] = {}
        """The measurement that no row has yet."""
        self._roles: dict[psutil.Process, str] = {}

    def take_row(self) -> dict[str, float]:
        """controller_memory_gib, trainer_memory_gib (the largest rank) and server_memory_gib (the largest
        server with its own processes), of those that there are. Empty where nothing was measured since the
        last call: a size of before a step says nothing of it."""
        row, self._row = self._row, {}
        return row

    def measure(self, families: Mapping[psutil.Process, Sequence[psutil.Process]]) -> None:
        """Measures the row that is taken next; `families` as `find_families` finds them."""
        sizes = {"controller": [psutil.Process().memory_info().rss], "trainer": [], "server": []}
        roles: dict[psutil.Process, str] = {}
        for child, family in families.items():
            # A child that has not begun its program yet has no role: it is looked at again.
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if role := self._roles.get(child) or _role(child):
                    roles[child] = role
                    sizes[role].append(_resident_bytes(family))
        self._roles = roles
        self._row = {
            f"{role}_memory_gib": round(max(found) / GIB, 3) for role, found in sizes.items() if found
        }


def _resident_bytes(family: Sequence[psutil.Process]) -> int:
    total = 0
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += process.memory_info().rss
    return total


def _role(process: psutil.Process) -> str:
    """Role of a child of the controller: trainer or server, else empty."""
    words = process.cmdline()
    if TRAINER in words:
        return "trainer"
    return "server" if SERVER in words else ""


# Near the limit the kernel takes pages of programs and files away and reads them again as they are needed:
# all is slow, and nothing fails.
class MemoryLimitMeter:
    """Owns what was measured at the last call."""

    def __init__(
        self,
        measure: Callable[[], GroupMemory | None] = group_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure = measure
        self._clock = clock
        self._seconds = clock()
        self._before = measure()

    def row(self) -> dict[str, float]:
        """memory_limit_share, and memory_stall_share since the last call; those that there are."""
        now, seconds = self._measure(), self._clock()
        before, passed = self._before, seconds - self._seconds
        self._before, self._seconds = now, seconds
        if now is None:
            return {}
        row = {"memory_limit_share": round(now.used_share, 4)}
        # Another group may be the nearest now, which has its own count.
        if before is None or before.limit != now.limit or passed <= 0:
            return row
        if before.stalled_seconds is not None and now.stalled_seconds is not None:
            stalled = max(0.0, now.stalled_seconds - before.stalled_seconds)
            row["memory_stall_share"] = round(min(1.0, stalled / passed), 4)
        return row
