"""`asyncrl plan RECIPE`: what a run would need and how stale its tokens would be, before anything starts."""

import argparse
from pathlib import Path

from asyncrl.commands.arguments import add_recipe, check_has_tasks
from asyncrl.commands.parser import number, whole
from asyncrl.errors import InputError
from asyncrl.journal.packing import NUMBER_BYTES
from asyncrl.launch.meters.fits import fit_table, offer
from asyncrl.launch.meters.memory import (
    FULL_SHARE,
    SERVER_PROCESS_BYTES,
    TRAINER_PROCESS_BYTES,
    largest_micro_batch,
    num_local_servers,
    run_bytes,
    side_bytes,
    trainer_memory,
)
from asyncrl.launch.placement import RUN, GpuMap, gpus_needed, place
from asyncrl.launch.prepare import fetch_shape, fetch_side_shapes
from asyncrl.model.column_bytes import ENTRY_BYTES, check_routing_replay, replayed_row_bytes
from asyncrl.model.dtype import disk_notes, find_dtype, version_lines
from asyncrl.model.memory import KINDS, parameters_by_kind, server_memory
from asyncrl.model.shape import ModelShape
from asyncrl.model.side_models import side_recipe
from asyncrl.model.source import is_of_hub
from asyncrl.model.supported import trained_in_short
from asyncrl.model.weights import num_parameters
from asyncrl.readers.planning.estimated import GPUS, LIKELY_GPU, find_device
from asyncrl.readers.planning.report import find_source, forecast
from asyncrl.readers.planning.step_budget import budget_table, load_of
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe, shown
from asyncrl.system.machine import machine_memory

HELP = (
    "Print parameters, memory per process and tokens per step of a recipe, from its "
    "model's config.json alone; "
    "exit code 2 when it cannot fit this machine, or GPUs of --gpu-memory-gb."
)
EXAMPLES = (
    "asyncrl plan recipes/r1_zero_arithmetic_cpu.yaml",
    "asyncrl plan recipes/r1_zero_math_qwen3.yaml --gpu-memory-gb 80 --simulate",
)

_PASSES = "a forward pass per older version of the sequences with its tokens"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--gpu-memory-gb",
        type=number(above=0),
        metavar="N",
        help="plan for GPUs of N GB (10^9 bytes), one per trainer rank and one per server rank",
    )
    parser.add_argument(
        "--longest-prompt",
        type=whole(1),
        metavar="N",
        help="tokens of the longest prompt, which bounds a sequence (default: all that the context leaves)",
    )
    parser.add_argument(
        "--fit",
        type=whole(1),
        nargs="+",
        metavar="N",
        help=f"how the recipe fits N GPUs of --gpu-memory-gb (default: those of --device, else of an "
        f"{LIKELY_GPU}), for each N",
    )
    parser.add_argument(
        "--step-budget",
        action="store_true",
        help="operations, bytes and time of the trainer's step per packed token, part by part, on paper",
    )
    group = parser.add_argument_group("simulation")
    group.add_argument(
        "--simulate",
        action="store_true",
        help="simulate the run: time per step, idle shares, staleness; instead of checking memory",
    )
    group.add_argument(
        "--device",
        metavar="NAME",
        help=f"what the plan is for: {', '.join(GPUS)} (default: the GPU of this machine, else {LIKELY_GPU})",
    )
    group.add_argument(
        "--gpus", type=whole(1), metavar="N", help="the best split of N GPUs, for several batch sizes"
    )
    group.add_argument(
        "--pass-rates",
        metavar="FILE",
        help="rows with the column pass_rate, as `asyncrl difficulty` writes it, by which pilots "
        "(rollout.pilot_samples) are extended or stop (default: all pass rates equally likely)",
    )
    group.add_argument(
        "--steps", type=whole(1), metavar="N", help="steps to simulate (default: all, 200 at most)"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when it fits. Raises InputError when not."""
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    path = Path(recipe.model.path)
    if not is_of_hub(recipe.model) and not path.exists() and recipe.prepare is not None:
        raise InputError(f"{path} is not made yet. `asyncrl train` makes it first; plan after that.")
    shape = fetch_shape(recipe)
    check_routing_replay(recipe, shape)
    if arguments.simulate or arguments.gpus is not None:
        check_has_tasks(recipe, "asyncrl plan --simulate")
        source = find_source(
            recipe,
            shape,
            device=arguments.device,
            is_elsewhere=arguments.gpus is not None or arguments.gpu_memory_gb is not None,
            longest_prompt=arguments.longest_prompt,
            pass_rates=arguments.pass_rates,
        )
        print(forecast(source, num_gpus=arguments.gpus, num_steps=arguments.steps))
        return 0
    longest, size = arguments.longest_prompt, arguments.gpu_memory_gb
    if arguments.fit:
        print(fit_table(recipe, shape, arguments))
        return 0
    if arguments.step_budget:
        device, why = find_device(recipe, name=arguments.device, is_elsewhere=size is not None)
        print("\n".join([f"{device.name}: {why}", *budget_table(shape, device, load_of(recipe))]))
        return 0
    # This machine's, unless the plan is for another one.
    gpus = place(recipe) if size is None else None
    print(describe(recipe, shape, gpus, longest_prompt=longest))
    try:
        check_fits(recipe, shape, gpu_memory_gb=size, longest_prompt=longest)
    except InputError as error:
        if size is None:
            raise
        raise InputError(f"{error}\n{offer(recipe, shape, arguments)}") from None
    return 0


def describe(
    recipe: Recipe, shape: ModelShape, gpus: GpuMap | None = None, *, longest_prompt: int | None = None
) -> str:
    """All lines of the plan: memory where each process computes, and with GPUs that of the host apart. `gpus`
    is what runs where on this machine, None for any other that has GPUs."""
    dtype = find_dtype(recipe, shape)
    name = recipe.model.path if is_of_hub(recipe.model) else shown(Path(recipe.model.path))
    on_gpu = gpus is None or gpus.uses_gpus
    return "\n".join(
        [
            f"model      {name}: {shape.architecture}, {dtype}",
            *_parameter_lines(recipe, shape),
            *_gpu_lines(recipe, gpus),
            *_trainer_lines(recipe, shape, longest_prompt, on_gpu),
            *_server_lines(recipe, shape, on_gpu),
            *version_lines(recipe, shape),
            *(f"  {note}" for note in disk_notes(recipe, shape)),
            *_side_lines(recipe, on_gpu),
            *_shared_lines(recipe, shape, longest_prompt, on_gpu),
            *_token_lines(recipe, shape),
            f"staleness  at most {recipe.rollout.max_staleness} (rollout.max_staleness)",
        ]
    )


def check_fits(
    recipe: Recipe, shape: ModelShape, *, gpu_memory_gb: float | None, longest_prompt: int | None = None
) -> None:
    """Raises InputError with the numbers and the knobs when the processes asked for cannot fit."""
    world = recipe.trainer.num_processes
    on_gpu = gpu_memory_gb is not None
    memory = trainer_memory(recipe, shape, longest_prompt=longest_prompt, on_gpu=on_gpu or None)
    server = sum(server_memory(shape, recipe, on_gpu=on_gpu).values())
    if gpu_memory_gb is not None:
        room = FULL_SHARE * gpu_memory_gb * 1e9
        rank = memory.computing(recipe.trainer.recompute)
        if recipe.placement.colocated:
            both = memory.resident() + server
            _check_device("a trainer's state with a server", both, room, "serving.max_total_tokens")
        _check_device("a trainer rank", rank, room, "trainer.tokens_per_micro_batch")
        _check_device("a server rank", server, room, "serving.max_total_tokens")
        return
    num_servers = num_local_servers(recipe)
    ranks_per_server = recipe.serving.tensor_parallel_size
    needed = run_bytes(recipe, shape, longest_prompt=longest_prompt)
    total = machine_memory().total
    there = total if recipe.memory_gib is None else recipe.memory_gib * 2**30
    if needed > there:
        rank = memory.total(recipe.trainer.recompute)
        raise InputError(
            f"the run needs about {_size(needed)} ({world} trainer rank(s) of {_size(rank)}, {num_servers} "
            f"server(s) of {_size(server * ranks_per_server)}), this machine has {_size(there)}. Lower "
            f"trainer.num_processes, trainer.tokens_per_micro_batch, serving.num_servers or "
            f"serving.max_total_tokens, or take a smaller model."
        )


def _parameter_lines(recipe: Recipe, shape: ModelShape) -> list[str]:
    counts, total = parameters_by_kind(shape), num_parameters(shape)
    lines = [f"parameters {total:,}"]
    for kind in KINDS:
        count = counts[kind]
        per_layer = f" ({count // shape.num_layers:,} in each of {shape.num_layers} layers)"
        if kind == "output layer" and shape.is_tied:
            lines.append(f"  {kind:24s} the embedding")
        elif count:
            kinds = ("mlp", "experts") if shape.delta_layers else ("attention", "mlp", "experts")
            is_per_layer = kind in kinds
            lines.append(f"  {kind:24s} {count:,}" + (per_layer if is_per_layer else ""))
    if recipe.model.lora is not None:
        lines.append(f"  {'trained':24s} {trained_in_short(recipe.model.lora, shape)}")
    return lines


def _gpu_lines(recipe: Recipe, gpus: GpuMap | None) -> list[str]:
    """The map of this machine where it has GPUs; else how many of them the processes take elsewhere."""
    if gpus is not None and gpus.uses_gpus:
        first, *rest = gpus.lines()
        return [f"gpus       {first}", *rest]
    needed = {role: gpus_needed(recipe, role) for role in RUN}
    if recipe.placement.colocated:
        needed["servers"] = 0
    servers = needed["servers"] + needed["evaluation"] + needed["teacher"]
    elsewhere = ", those of external servers apart" if recipe.serving.servers else ""
    line = (
        f"gpus       {needed['trainer'] + servers} where every process has its own: {needed['trainer']} for "
        f"the trainer, {servers} for servers{elsewhere}"
    )
    if recipe.placement.colocated:
        line = (
            f"gpus       {needed['trainer'] + servers}: {needed['trainer']} for trainer and rollout servers, "
            f"{servers} for evaluation servers"
        )
    if gpus is None:
        return [line]
    return [line, *(f"  {'here':24s} {remark}" for remark in gpus.lines())]


def _trainer_lines(recipe: Recipe, shape: ModelShape, longest_prompt: int | None, on_gpu: bool) -> list[str]:
    section = recipe.trainer
    memory = trainer_memory(recipe, shape, longest_prompt=longest_prompt, on_gpu=on_gpu)
    sizes = [_size(memory.computing(kind) if on_gpu else memory.total(kind)) for kind in ("none", "full")]
    host = TRAINER_PROCESS_BYTES + memory.copies() + memory.beside()
    where = f" on its GPU, {_size(host)} of host memory" if on_gpu else ""
    lines = [
        f"trainer    {section.num_processes} process(es), {section.threads_per_process} thread(s) each; each "
        f"rank {sizes[0]}, with recomputation {sizes[1]}{where}"
    ]
    if on_gpu:
        lines.append(f"  {'':24s} {'GPU':>10s} {'host':>10s}")
    packed = _packed_remark(recipe, shape, longest_prompt)
    critic = "all of the above once more" if recipe.model.lora is None else "all its weights are trained"
    for name, size, remark in (
        ("weights", memory.weights, ""),
        ("gradients", memory.gradients, "float32"),
        ("optimizer states", memory.optimizer, "Adam"),
        *([("critic", memory.critic, critic)] if memory.critic else []),
        *([("reference", memory.reference, "frozen weights, for the KL")] if memory.reference else []),
        ("activations", memory.activations, packed),
        ("  recomputed, selective", memory.activations_selective, "in place of them: norms and MLP again"),
        ("  recomputed, full", memory.activations_recomputed, "one layer at a time"),
        ("logits", memory.logits, "of a chunk of tokens"),
        *(
            [("output layer's gradient", memory.output_gradient, "while it is summed up")]
            if memory.merging == 0
            else [("merged matrix", memory.merging, "with its adapter, while a layer computes")]
        ),
    ):
        lines.append(_memory_line(name, size, 0, remark, on_gpu))
    if memory.past_versions:
        remark = f"a model, and versions on the host; {_PASSES}"
        lines.append(_memory_line("past versions", memory.past_model, memory.past_versions, remark, on_gpu))
    if memory.offloaded:
        lines.append(_memory_line("Adam on the host", 0, memory.offloaded, "with gradients", on_gpu))
    copies, remark = memory.copies(), "from the first checkpoint on"
    lines.append(_memory_line("copy for checkpoints", 0, copies, remark, on_gpu))
    return lines


def _packed_remark(recipe: Recipe, shape: ModelShape, longest_prompt: int | None) -> str:
    """Which tokens the activations are of."""
    budget = recipe.trainer.tokens_per_micro_batch
    packed = largest_micro_batch(recipe, shape, longest_prompt)
    if packed == budget:
        return f"{packed:,} packed tokens (trainer.tokens_per_micro_batch)"
    if packed < budget:
        return f"{packed:,} packed tokens, all of a batch; trainer.tokens_per_micro_batch is {budget:,}"
    why = "that the context allows (--longest-prompt lowers it)" if longest_prompt is None else "there is"
    return (
        f"{packed:,} packed tokens, the longest sequence {why}. It is never divided, so that "
        f"trainer.tokens_per_micro_batch {budget:,} does not lower this"
    )


def _memory_line(name: str, computing: int, host: int, remark: str, on_gpu: bool) -> str:
    """Two columns with GPUs, one without."""
    if not on_gpu:
        return f"  {name:24s} {_size(computing + host):>10s}  {remark}".rstrip()
    columns = (_size(size) if size else "" for size in (computing, host))
    return "  ".join([f"  {name:24s} {' '.join(f'{column:>10s}' for column in columns)}", remark]).rstrip()


def _server_lines(recipe: Recipe, shape: ModelShape, on_gpu: bool) -> list[str]:
    serving, memory = recipe.serving, server_memory(shape, recipe, on_gpu=on_gpu)
    what = f"{len(serving.servers)} external" if serving.servers else f"{serving.num_servers} here"
    cache_tokens = serving.cache_tokens(has_gpu=on_gpu)
    cache = "what the engine finds free" if cache_tokens is None else f"{cache_tokens} tokens"
    lines = [
        f"servers    {what}, {serving.tensor_parallel_size} rank(s) each; each rank "
        f"{_size(sum(memory.values()))} and about {_size(SERVER_PROCESS_BYTES)} of process",
        _memory_line("weights", memory["weights"], 0, "", on_gpu),
        _memory_line("key-value cache", memory["kv_cache"], 0, cache, on_gpu),
    ]
    if shape.delta_layers:
        held = f"{serving.max_running_requests} requests at once"
        remark = "what the engine finds free" if on_gpu else held
        lines.append(_memory_line("states", memory["states"], 0, remark, on_gpu))
    return lines


def _side_lines(recipe: Recipe, on_gpu: bool) -> list[str]:
    """Lines on the teacher and on opponents."""
    lines = [] if recipe.teacher.url is None else [f"teacher    external: {recipe.teacher.url}"]
    for name, shape in fetch_side_shapes(recipe).items():
        own = side_recipe(recipe, name)
        size = _size(side_bytes(own, on_gpu=on_gpu, shape=shape))
        lines.append(
            f"{name:10s} a server of its own, {own.serving.tensor_parallel_size} rank(s); each rank {size} "
            f"and about {_size(SERVER_PROCESS_BYTES)} of process"
        )
    return lines


def _shared_lines(recipe: Recipe, shape: ModelShape, longest_prompt: int | None, on_gpu: bool) -> list[str]:
    """Lines on one rank and one server that take turns."""
    if not recipe.placement.colocated:
        return []
    memory = trainer_memory(recipe, shape, longest_prompt=longest_prompt, on_gpu=on_gpu)
    rank = memory.computing(recipe.trainer.recompute)
    server = sum(server_memory(shape, recipe, on_gpu=on_gpu).values())
    where = "each shared GPU" if on_gpu else "a rank and a server"
    return [
        f"shared     {where} {_size(max(rank, memory.resident() + server))} (placement.colocated)",
        f"  {'while the trainer steps':24s} {_size(rank):>10s}  the server sleeps",
        f"  {'while servers generate':24s} {_size(memory.resident() + server):>10s}  "
        f"{_size(memory.resident())} of it the trainer's weights, gradients and optimizer",
    ]


def _token_lines(recipe: Recipe, shape: ModelShape) -> list[str]:
    rollout = recipe.rollout
    num_groups, repeated = recipe.groups_per_step(), recipe.replay.repeated_groups_per_batch
    again = f" ({repeated} of them again)" if repeated else ""
    sequences = num_groups * rollout.samples_per_group
    most = sequences * rollout.max_new_tokens
    kept = ""
    if rollout.top_k is not None:
        kept = (
            f"; kept sets: 1 more and 1 to 3 for each other kept token, {1 + 3 * (rollout.top_k - 1):,} at "
            f"most (rollout.top_k)"
        )
    routed = ""
    if size := replayed_row_bytes(recipe, shape):
        routed = f"; {size:,} for its experts, and for those of each prompt token (algorithm.routing_replay)"
    taught = f"; {NUMBER_BYTES} more for the teacher's log-prob" if recipe.teacher.is_on() else ""
    if top_k := recipe.teacher.top_k:
        taught += f", {ENTRY_BYTES * top_k} for its {top_k} likeliest tokens (teacher.top_k)"
    return [
        f"step       {num_groups} groups{again} x {rollout.samples_per_group} samples = {sequences} "
        f"trajectories, at most {most:,} response tokens, {recipe.trainer.num_steps} steps",
        f"journal    {2 * NUMBER_BYTES} bytes for each sampled token{kept}{taught}{routed}",
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
