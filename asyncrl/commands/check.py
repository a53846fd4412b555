"""`asyncrl check RECIPE`: validates a recipe and its data, starts nothing, prints what would run where."""

import argparse
import importlib
from pathlib import Path

from asyncrl.commands.arguments import add_recipe
from asyncrl.controller.inputs import Inputs
from asyncrl.data.gym import check_gyms
from asyncrl.data.prompts import told_title
from asyncrl.examples.prepare import is_prepared
from asyncrl.launch.machine_check import check_machine
from asyncrl.launch.meters.memory import gpu_bytes, host_bytes, run_bytes
from asyncrl.launch.placement import GpuMap, place
from asyncrl.launch.preflight import check_unfinished, read_inputs
from asyncrl.launch.prepare import check_names, fetch_models
from asyncrl.model.dtype import disk_notes, find_dtype
from asyncrl.model.folder import unread_notes
from asyncrl.model.shape import ModelShape
from asyncrl.model.side_models import read_teacher
from asyncrl.model.source import model_folder, model_title
from asyncrl.model.supported import slower_parts, trained_in_short
from asyncrl.model.unsampled import find_unsampled
from asyncrl.model.weights import num_parameters
from asyncrl.observe.terminal.table import warn_on_stderr
from asyncrl.readers.trackers.tracker import check_trackers
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import dump_recipe, load_recipe, shown
from asyncrl.recipe.former_keys import translate_file
from asyncrl.recipe.notes import notes, preset_in_short
from asyncrl.rollout.agents.kit import agent_in_short
from asyncrl.run.folder import RunFolder
from asyncrl.turns.kit import history_notes, turns_in_short

HELP = "Validate a recipe and its data, print what it sets and what would run where."
EXAMPLES = (
    "asyncrl check recipes/r1_zero_arithmetic_cpu.yaml",
    "asyncrl check my_recipe.yaml --translate",
    "asyncrl check recipes/r1_zero_arithmetic_cpu.yaml trainer.num_steps=20 algorithm.preset=dapo",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--translate", action="store_true", help="rewrite a file with keys as they were before, and end"
    )
    parser.add_argument("--all", action="store_true", help="print every key, defaults included")


def run(arguments: argparse.Namespace) -> int:
    """0 when the recipe would run. Raises InputError when not."""
    warn_on_stderr()
    if arguments.translate:
        for line in translate_file(arguments.recipe) or ["no key of it has another name now"]:
            print(f"{shown(arguments.recipe)}: {line}")
        return 0
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    check_names(recipe)
    recipe = fetch_models(recipe)
    print(dump_recipe(recipe, has_defaults=arguments.all))
    if recipe.algorithm.preset is not None:
        print(f"# preset    {preset_in_short(recipe, recipe.algorithm.preset)}")
    for note in notes(recipe):
        print(f"# note      {note}")
    check_gyms(recipe.data, recipe.evaluation)
    check_trackers(recipe.trackers)
    gpus = place(recipe)
    if recipe.algorithm.has_own_loss_terms():
        # It imports torch, as the trainer does; recipes without such terms are checked in a second.
        importlib.import_module("asyncrl.algorithms.own_terms").check_terms(recipe.algorithm)
    if recipe.prepare is not None and not is_prepared(recipe.prepare):
        print(
            f"# {shown(Path(recipe.prepare.folder))} is not made yet: train makes it first. Model and "
            f"data are not checked."
        )
        return 0
    inputs, shape = read_inputs(recipe)
    longest = inputs.longest_prompt()
    evaluated = inputs.longest_evaluated()
    check_machine(recipe, shape, gpus, longest_prompt=longest, longest_evaluated=evaluated)
    folder = RunFolder(shown(recipe.folder()))
    resumes = folder.check(recipe)
    remarks = check_unfinished(inputs, folder.journal) if resumes else []
    print(_plan(recipe, inputs, shape, gpus, _begin(folder, recipe, resumes=resumes), longest))
    unread = unread_notes(model_folder(recipe.model), shape)
    for note in [*disk_notes(recipe, shape), *slower_parts(recipe, shape), *unread]:
        print(f"# note      {note}")
    if recipe.turns.is_on() and inputs.kit is not None:
        for note in history_notes(inputs.kit, recipe.turns, is_rendered=recipe.renders_history()):
            print(f"# note      {note}")
    for remark in [*folder.resumption.remarks, *remarks] if resumes else []:
        print(f"# {remark}")
    return 0


def _begin(folder: RunFolder, recipe: Recipe, *, resumes: bool) -> str:
    """The effect of `asyncrl train` on the run's folder."""
    if not resumes:
        return "new"
    if (end := folder.end(recipe)) is not None:
        return f"complete, ended by {end.words()}"
    return f"resumes at step {folder.resumption.version + 1}"


def _plan(
    recipe: Recipe, inputs: Inputs, shape: ModelShape, gpus: GpuMap, begin: str, longest_prompt: int
) -> str:
    rollout, serving, trainer = recipe.rollout, recipe.serving, recipe.trainer
    is_local = recipe.cluster.backend == "local"
    where = "GPU" if gpus.uses_gpus or not is_local else "CPU"
    place = "here" if is_local else f"with Ray ({recipe.cluster.address})"
    if recipe.learns_from_rows() and not serving.fleet_size():
        servers = "no server: nothing is generated"
    elif serving.servers:
        servers = f"{len(serving.servers)} external server(s): {', '.join(serving.servers)}"
    else:
        threads = serving.threads_per_server
        servers = f"{serving.num_servers} SGLang server(s) {place} on {where}, {threads} thread(s) each"
    unsampled = find_unsampled(model_folder(recipe.model), rollout.stop_tokens)
    batch = rollout.groups_per_batch * rollout.samples_per_group
    repeated = recipe.replay.repeated_groups_per_batch
    again = f" and {repeated} groups again" if repeated else ""
    pilot = rollout.pilot_samples
    first = "" if pilot is None else f" ({pilot} first, the others where two rewards are likely)"
    lora = recipe.model.lora
    asked = (
        f"{rollout.groups_per_batch} tasks x {rollout.samples_per_group} samples{first} = {batch} "
        f"trajectories{again}, {trainer.num_steps} steps, max_staleness {rollout.max_staleness}"
    )
    if recipe.learns_from_rows():
        asked = f"{rollout.groups_per_batch} rows, {trainer.num_steps} steps"
    lines = [
        f"model     {model_title(recipe.model)}: {shape.architecture}, "
        f"{num_parameters(shape) / 1e6:.1f} M parameters, {find_dtype(recipe, shape)}, "
        f"context {inputs.context_tokens} tokens",
        *([] if lora is None else [f"trained   {trained_in_short(lora, shape)}"]),
        _data(inputs),
        *_choice_lines(inputs),
        *(
            f"benchmark {eval_set.name}: {len(eval_set.tasks)} tasks, {eval_set.template}"
            for eval_set in inputs.eval_sets
        ),
        *_group_verifiers(recipe, inputs),
        f"prompts   {_template(recipe)}, in training and in evaluation",
        f"rollout   {servers}",
        *([_teacher(recipe)] if recipe.teacher.is_on() else []),
        *(
            [f"turns     {turns_in_short(inputs.kit, recipe.turns)}"]
            if recipe.turns.is_on() and inputs.kit is not None
            else []
        ),
        *([f"agent     {agent_in_short(recipe.agent)}"] if recipe.agent.is_on() else []),
        *([] if recipe.learns_from_rows() else [f"sampling  never sampled: {unsampled.describe()}"]),
        f"trainer   {trainer.num_processes} Megatron-core process(es) on {where}, "
        f"{trainer.threads_per_process} thread(s) each",
        *(f"{'gpus' if i == 0 else '':9s} {line}" for i, line in enumerate(gpus.lines() if is_local else [])),
        f"batch     {asked}",
        f"memory    {_memory(recipe, shape, gpus, longest_prompt)}",
        f"run       {shown(recipe.folder())} ({begin})",
    ]
    return "\n".join(f"# {line}" for line in lines)


def _data(inputs: Inputs) -> str:
    if not inputs.recipe.learns_from_rows():
        unjudged = "" if inputs.recipe.has_verdicts() else " that no verifier judges"
        return (
            f"data      {len(inputs.train_tasks)} training tasks{unjudged}, {len(inputs.heldout_tasks)} "
            "held-out tasks, every answer parsed by its verifier"
        )
    asked = f", {len(inputs.heldout_tasks)} of them answered" if inputs.heldout_tasks else ""
    return (
        f"data      stage {inputs.recipe.stage}: {len(inputs.train_tasks)} training rows, the longest has "
        f"{inputs.longest_prompt()} tokens, {len(inputs.heldout_rows)} held-out rows{asked}"
    )


def _teacher(recipe: Recipe) -> str:
    teacher = recipe.teacher
    found = read_teacher(recipe)
    where = f"at {teacher.url}" if teacher.url is not None else f"on a server of its own, {found.dtype}"
    beside = "beside the reward" if teacher.with_reward else "in place of a reward"
    top = ""
    if teacher.top_k is not None:
        weight = f"coefficient {teacher.top_k_coefficient:g}"
        top = f"; forward KL over its {teacher.top_k} likeliest tokens, {weight}"
    return (
        f"teacher   {shown(found.folder)}, {where}: the same token ids; its log-probs "
        f"{beside}, coefficient {teacher.coefficient:g}{top}"
    )


def _choice_lines(inputs: Inputs) -> list[str]:
    data, lines = inputs.recipe.data, []
    if data.filter is not None:
        num_kept = len(inputs.train_tasks)
        lines.append(f"filter    {data.filter}: leaves out {inputs.num_filtered} rows, keeps {num_kept}")
    if data.selection.by != "uniform":
        lines.append(f"rows      selected by {data.selection.describe()}")
    if data.mixture.rebalance == "signal":
        kept = f"{data.mixture.floor:g} of their weight at least"
        lines.append(f"sources   share the groups by their chance of a signal, {kept}")
    return lines


def _memory(recipe: Recipe, shape: ModelShape, gpus: GpuMap, longest_prompt: int) -> str:
    if not gpus.uses_gpus:
        return f"about {run_bytes(recipe, shape, longest_prompt=longest_prompt) / 2**30:.1f} GiB"
    fullest = max(size for _, size, _ in gpu_bytes(recipe, shape, gpus, longest_prompt=longest_prompt))
    host = host_bytes(recipe, shape)
    return f"about {fullest / 2**30:.1f} GiB on the fullest GPU, {host / 2**30:.1f} GiB of the host's"


def _group_verifiers(recipe: Recipe, inputs: Inputs) -> list[str]:
    """Those that wait for whole groups."""
    specs = [example.verifier for example in inputs.verifiers.examples.values()]
    names = sorted({spec.name for spec in specs if inputs.verifiers.is_group_wise(spec)})
    if not names:
        return []
    num_responses = recipe.trajectories_per_group()
    return [f"verdicts  {', '.join(names)}: asked when all {num_responses} responses of a group are there"]


def _template(recipe: Recipe) -> str:
    name = recipe.prompt.template if recipe.prompt is not None else None
    if name is None:
        words = "those of the rows"
    else:
        words = f"by template {name}" if "{" not in name else "by the recipe's own template"
    return told_title(words, recipe.chat_template_kwargs())
