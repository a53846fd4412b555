"""`asyncrl train RECIPE`: prepares, checks, trains, reports; on the same run folder it resumes."""

import argparse
import asyncio
import contextlib
import importlib.util
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator

from rich.console import Console

from asyncrl.commands.arguments import add_recipe
from asyncrl.commands.pages import say_failure
from asyncrl.errors import AsyncrlError, DiskError, InputError
from asyncrl.journal.starts import RunEnd
from asyncrl.launch import local
from asyncrl.launch.evaluated_models import usable_versions
from asyncrl.launch.machine_check import check_machine
from asyncrl.launch.placement import GpuMap, place
from asyncrl.launch.preflight import read_inputs
from asyncrl.launch.prepare import fetch_model_to_train, prepare_and_fetch
from asyncrl.launch.restarts import first_cause
from asyncrl.launch.stopping import INTERRUPTED, LastResort, phases_of_stop
from asyncrl.observe.terminal.table import has_terminal, warn_on_stderr
from asyncrl.readers.report.write import write_report
from asyncrl.readers.status import print_end
from asyncrl.recipe import Recipe, shipped
from asyncrl.recipe.file import load_recipe, shown
from asyncrl.recipe.shipped import Header, read_header
from asyncrl.run.checkpoints import export_path
from asyncrl.run.folder import RunFolder
from asyncrl.system.files import FULL_DISK
from asyncrl.system.machine import machine_memory
from asyncrl.system.places import shipped_folder

EXIT_CODES: dict[local.Outcome, int] = {"finished": 0, "unmeasured": 1, "stopped": INTERRUPTED}
HELP = "Train with a recipe. Run it again to resume after any interruption."
EXAMPLES = (
    "asyncrl train recipes/r1_zero_arithmetic_cpu.yaml",
    "asyncrl train recipes/r1_zero_arithmetic_cpu.yaml seed=7 rollout.max_staleness=0",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, may_be_none=True)


def run(arguments: argparse.Namespace) -> int:
    """0 when the run reached its end, 1 when it or its last evaluation failed, 130 after Ctrl-C; 2 without a
    recipe, where those shipped are listed. Raises InputError."""
    if arguments.recipe is None:
        print(recipe_list())
        return 2
    warn_on_stderr()
    return explained(lambda: _train_words(arguments))


def _train_words(arguments: argparse.Namespace) -> int:
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    # Before anything is prepared or fetched.
    gpus = place(recipe)
    ready = prepare_and_fetch(recipe, arguments.recipe, arguments.overrides, fetch_model_to_train)
    return train(ready, gpus)


def explained(work: Callable[[], int], *, has_page: bool = True) -> int:
    """The result of `work`; where it failed 1 and a sentence with its page, after Ctrl-C 130. Raises
    InputError, and what no sentence explains."""
    try:
        return work()
    except InputError:
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    except (BaseExceptionGroup, AsyncrlError, OSError) as error:
        cause = first_cause(error)
        if isinstance(cause, OSError) and cause.errno in FULL_DISK:
            cause = DiskError(
                f"{cause.strerror}, {cause.filename or 'a temporary file'}. Free up disk space and run the "
                f"same command again: a run resumes."
            )
        if not isinstance(cause, AsyncrlError):
            raise
        return say_failure(cause, has_page=has_page)


def train(recipe: Recipe, gpus: GpuMap) -> int:
    """Trains what `prepare_and_fetch` made ready, and reports; the exit code. Raises what a run raises."""
    folder = RunFolder(shown(recipe.folder()))
    if folder.check(recipe) and (end := folder.end(recipe)) is not None:
        print(_words_of_end(folder, recipe, end))
        with _interruption_said(folder, recipe):
            _report(folder, outcome="finished")
        return EXIT_CODES["finished"]
    if not has_terminal(Console()):
        # A pipe or a log shows no bar, and the next line may be half a minute away.
        print(f"start   checking the model and the rows of {recipe.name}", flush=True)
    inputs, shape = read_inputs(recipe)
    prompt, evaluated = inputs.longest_prompt(), inputs.longest_evaluated()
    check_machine(recipe, shape, gpus, longest_prompt=prompt, longest_evaluated=evaluated)
    phases = phases_of_stop(recipe.trainer.stop_timeout_seconds)
    with folder, _interruption_said(folder, recipe), LastResort(phases) as last_resort:
        folder.open(recipe)
        outcome = asyncio.run(local.train(inputs, folder, last_resort, gpus=gpus))
        last_resort.next_phase()
        _report(folder, outcome=outcome)
    return EXIT_CODES[outcome]


@contextlib.contextmanager
def _interruption_said(folder: RunFolder, recipe: Recipe) -> Iterator[None]:
    """Says of a complete run that Ctrl-C cost its report alone."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        if folder.end(recipe) is not None:
            command = f"asyncrl report {shlex.quote(str(folder.path))}"
            print(f"The run is complete, but its report is not: {command} writes it.", file=sys.stderr)
        raise


def _words_of_end(folder: RunFolder, recipe: Recipe, end: RunEnd) -> str:
    is_at_last_step = end.version >= recipe.trainer.num_steps
    knob = "trainer.num_steps" if is_at_last_step else "or remove evaluation.stop_at_accuracy"
    return (
        f"{folder.path} is complete. Raise {knob} to continue, or set run_folder to start over. It ended by "
        f"{end.words()}."
    )


def _report(folder: RunFolder, *, outcome: local.Outcome) -> None:
    kept = usable_versions(folder.path)
    path = shlex.quote(str(folder.path))
    commands = {"browse trajectories": f"asyncrl view {path}"}
    if kept:
        # A run that was stopped may have exported nothing: the commands below do it first.
        if (exported := export_path(folder.path, kept[-1])).is_dir():
            commands["checkpoint"] = str(exported)
        commands["chat with it"] = f"asyncrl chat {path}"
        commands["compare it"] = f"asyncrl eval {path}"
    if outcome != "finished":
        commands["resume"] = "the same command again"
    report = write_report(folder.path, commands=commands)
    print_end(report, folder.path, commands)


WIDTH = 100


def recipe_list(free_gib: float | None = None) -> str:
    """Recipes that run on this machine, quickest first: what each teaches, its time, memory and command.

    `free_gib` is memory, by default what this machine has left.
    """
    free = machine_memory().available / 2**30 if free_gib is None else free_gib
    cores = len(os.sched_getaffinity(0))
    headers = sorted(_headers(), key=lambda header: (header.minutes, header.first is not None, header.name))
    lacking = {header.name: why for header in headers if (why := lacks(header, free)) is not None}
    lines = ["asyncrl train RECIPE [section.key=value ...]", ""]
    lines += [f"Shipped recipes that run here (cores: {cores}, free memory: {free:.1f} GiB):", ""]
    for header in headers:
        if header.name not in lacking:
            lines += _lines(header)
    lines += [f"Not here: {name}, {why}." for name, why in lacking.items()]
    count, place = len(shipped.files()) - len(headers), shipped_folder(shipped.FOLDER)
    lines += [f"For GPUs: {count} more in {place}; `asyncrl plan NAME` says what one needs."]
    lines += ["For your own model and data: `asyncrl init` writes a recipe."]
    return "\n".join(lines)


def lacks(header: Header, free_gib: float) -> str | None:
    """The need of a recipe that this machine does not meet; None where it runs."""
    if header.module is not None and importlib.util.find_spec(header.module) is None:
        flag = str(header.extra).upper()
        return f"needs {header.module}: the extra {header.extra} (docs/install.md; make setup {flag}=1)"
    if header.memory_gib > free_gib:
        return f"needs {header.memory_gib} GiB of memory"
    return None


def _headers() -> Iterator[Header]:
    home = shipped_folder(shipped.FOLDER)
    if home is not None:
        found = (read_header(home / file, file.stem) for file in shipped.files())
        yield from (header for header in found if header is not None)


def _lines(header: Header) -> list[str]:
    commands = [*([header.first] if header.first else []), f"asyncrl train {header.name}"]
    said = textwrap.wrap(header.teaches, WIDTH, initial_indent="  ", subsequent_indent="  ")
    return [*said, f"    {header.time}; {header.memory_gib} GiB", *(f"    {each}" for each in commands), ""]
