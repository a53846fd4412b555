"""`asyncrl plan RECIPE`: what a run would need and how stale its tokens would be, before anything starts."""

import argparse
import math
import sys
from pathlib import Path

import psutil

from asyncrl.commands.arguments import add_recipe
from asyncrl.errors import InputError
from asyncrl.launch.base_model import fetch_shape
from asyncrl.launch.memory import SERVER_PROCESS_BYTES, num_local_servers, run_bytes, trainer_memory
from asyncrl.model.dtype import find_dtype
from asyncrl.model.folder import ModelShape
from asyncrl.model.memory import (
    KINDS,
    parameters_by_kind,
    server_memory,
)
from asyncrl.model.source import is_of_hub
from asyncrl.recipe import Model, Recipe
from asyncrl.recipe.file import load_recipe, shown

HELP = (
    "Print parameters, memory per process, tokens per step and expected staleness of a recipe, from its "
    "model's config.json alone; exit code 2 when it cannot fit this machine, or GPUs of --gpu-memory-gb."
)
FULL_SHARE = 0.9
"""Of a device's memory: the rest is the allocator's and the communication library's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--gpu-memory-gb",
        type=float,
        metavar="N",
        help="plan for GPUs of N GB (10^9 bytes), one per trainer rank and one per server rank",
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when it fits, 2 when not."""
    try:
        recipe = load_recipe(arguments.recipe, arguments.overrides)
        shape = read_model_shape(recipe)
        print(describe(recipe, shape))
        check_fits(recipe, shape, gpu_memory_gb=arguments.gpu_memory_gb)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def read_model_shape(recipe: Recipe) -> ModelShape:
    path = Path(recipe.model.path)
    if not is_of_hub(recipe.model) and not path.exists() and recipe.prepare is not None:
        raise InputError(f"{path} is not made yet. `asyncrl train` makes it first; plan after that.")
    return fetch_shape(recipe)


def describe(recipe: Recipe, shape: ModelShape) -> str:
    """All lines of the plan."""
    dtype = find_dtype(recipe.model, shape)
    return "\n".join(
        [
            f"model      {_model_name(recipe.model)}: {shape.architecture}, {dtype}",
            *_parameter_lines(shape),
            _gpu_line(recipe),
            *_trainer_lines(recipe, shape),
            *_server_lines(recipe, shape),
            *_token_lines(recipe),
            *_staleness_lines(recipe),
        ]
    )


def _model_name(section: Model) -> str:
    return section.path if is_of_hub(section) else str(shown(Path(section.path)))


def check_fits(recipe: Recipe, shape: ModelShape, *, gpu_memory_gb: float | None) -> None:
    """Raises InputError with the numbers and the knobs when the processes asked for cannot fit."""
    world = recipe.trainer.num_processes
    rank = trainer_memory(recipe, shape).total(is_recomputing=recipe.trainer.recompute == "full")
    server = sum(server_memory(shape, recipe).values())
    if gpu_memory_gb is not None:
        room = FULL_SHARE * gpu_memory_gb * 1e9
        _check_device("a trainer rank", rank, room, "trainer.tokens_per_micro_batch")
        _check_device("a server rank", server, room, "serving.max_total_tokens")
        return
    num_servers = num_local_servers(recipe)
    ranks_per_server = recipe.serving.tensor_parallel_size
    needed = run_bytes(recipe, shape)
    total = psutil.virtual_memory().total
    there = total if recipe.memory_gib is None else recipe.memory_gib * 2**30
    if needed > there:
        raise InputError(
            f"the run needs about {_size(needed)} ({world} trainer rank(s) of {_size(rank)}, {num_servers} "
            f"server(s) of {_size(server * ranks_per_server)}), this machine has {_size(there)}. Lower "
            f"trainer.num_processes, trainer.tokens_per_micro_batch, serving.num_servers or "
            f"serving.max_total_tokens, or take a smaller model."
        )


def first_token_staleness(recipe: Recipe) -> tuple[float, int]:
    """(batches in flight on full servers, groups in flight): how many versions pass while a group is made."""
    rollout, serving = recipe.rollout, recipe.serving
    num_servers = len(serving.servers) or serving.num_servers
    fitting = num_servers * serving.max_running_requests // rollout.samples_per_group
    allowed = (rollout.max_staleness + 1) * rollout.groups_per_batch
    if rollout.oversampling is not None:
        allowed = min(allowed, math.ceil(rollout.oversampling * rollout.groups_per_batch))
    groups = min(fitting, allowed)
    return groups / rollout.groups_per_batch, groups


def _parameter_lines(shape: ModelShape) -> list[str]:
    counts, total = parameters_by_kind(shape), shape.num_parameters()
    lines = [f"parameters {total:,}"]
    for kind in KINDS:
        count = counts[kind]
        per_layer = f" ({count // shape.num_layers:,} in each of {shape.num_layers} layers)"
        if kind == "output layer" and shape.is_tied:
            lines.append(f"  {kind:24s} the embedding")
        elif count:
            is_per_layer = kind in ("attention", "mlp", "experts")
            lines.append(f"  {kind:24s} {count:,}" + (per_layer if is_per_layer else ""))
    return lines


def _gpu_line(recipe: Recipe) -> str:
    """How many GPUs the processes take on a machine that has them, each its own."""
    ranks, servers = recipe.trainer.num_processes, num_local_servers(recipe)
    server_ranks = servers * recipe.serving.tensor_parallel_size
    elsewhere = ", those of external servers apart" if recipe.serving.servers else ""
    return (
        f"gpus       {ranks + server_ranks} where every process has its own: {ranks} for the trainer, "
        f"{server_ranks} for servers{elsewhere}"
    )


def _trainer_lines(recipe: Recipe, shape: ModelShape) -> list[str]:
    memory, section = trainer_memory(recipe, shape), recipe.trainer
    lines = [
        f"trainer    {section.num_processes} process(es), {section.threads_per_process} thread(s) each; each "
        f"rank {_size(memory.total())}, with recomputation {_size(memory.total(is_recomputing=True))}"
    ]
    budget = f"{section.tokens_per_micro_batch} packed tokens"
    for name, size, remark in (
        ("weights", memory.weights, ""),
        ("gradients", memory.gradients, "float32"),
        ("optimizer states", memory.optimizer, "Adam"),
        ("copy while saving", memory.checkpoint_copy, "only while a checkpoint is written"),
        *([("critic", memory.critic, "all of the above once more")] if memory.critic else []),
        *([("reference", memory.reference, "frozen weights, for the KL")] if memory.reference else []),
        ("activations", memory.activations, budget),
        ("  recomputed", memory.activations_recomputed, f"{budget}, one layer at a time"),
        ("logits", memory.logits, "of a chunk of tokens"),
    ):
        lines.append(f"  {name:24s} {_size(size):>10s}  {remark}".rstrip())
    return lines


def _server_lines(recipe: Recipe, shape: ModelShape) -> list[str]:
    serving, memory = recipe.serving, server_memory(shape, recipe)
    what = f"{len(serving.servers)} external" if serving.servers else f"{serving.num_servers} here"
    return [
        f"servers    {what}, {serving.tensor_parallel_size} rank(s) each; each rank "
        f"{_size(sum(memory.values()))} and about {_size(SERVER_PROCESS_BYTES)} of process",
        f"  {'weights':24s} {_size(memory['weights']):>10s}",
        f"  {'key-value cache':24s} {_size(memory['kv_cache']):>10s}  {serving.max_total_tokens} tokens",
    ]


def _token_lines(recipe: Recipe) -> list[str]:
    rollout = recipe.rollout
    num_groups, repeated = recipe.groups_per_step(), recipe.replay.repeated_groups_per_batch
    again = f" ({repeated} of them again)" if repeated else ""
    sequences = num_groups * rollout.samples_per_group
    most = sequences * rollout.max_new_tokens
    return [
        f"step       {num_groups} groups{again} x {rollout.samples_per_group} samples = {sequences} "
        f"trajectories, at most {most:,} response tokens, {recipe.trainer.num_steps} steps"
    ]


def _staleness_lines(recipe: Recipe) -> list[str]:
    bound = recipe.rollout.max_staleness
    batches, groups = first_token_staleness(recipe)
    first = min(float(bound), batches)
    return [
        f"staleness  at most {bound} (rollout.max_staleness); {groups} groups in flight at once are "
        f"{batches:.1f} batches",
        f"  while servers are the slower side, first tokens are about {first:.1f} versions old when trained, "
        f"the average token {first / 2:.1f}",
        f"  while the trainer is, finished groups wait for it: up to {bound}",
    ]


def _check_device(what: str, needed: int, room: float, knob: str) -> None:
    if needed > room:
        raise InputError(
            f"{what} needs {needed / 1e9:.1f} GB, {FULL_SHARE:.0%} of --gpu-memory-gb is {room / 1e9:.1f} "
            f"GB. Lower {knob}, or take a smaller model or a larger GPU."
        )


def _size(num_bytes: float) -> str:
    if num_bytes >= 2**30:
        return f"{num_bytes / 2**30:.1f} GiB"
    return f"{num_bytes / 2**20:.1f} MiB"
