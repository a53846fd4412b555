"""`asyncrl chain CHAIN`: runs stages one after the other, each from what earlier ones made."""

import argparse
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from asyncrl.commands import select, train
from asyncrl.commands.select import Request
from asyncrl.errors import InputError
from asyncrl.journal.starts import RUN
from asyncrl.launch.meters.usage import INTERVAL_SECONDS, UsageMeter
from asyncrl.observe.terminal.table import warn_on_stderr
from asyncrl.readers.chain.tables import write_story
from asyncrl.readers.selection.candidate import Account, Fate
from asyncrl.recipe.chain import SelectStage, read_chain
from asyncrl.recipe.file import shown
from asyncrl.run.chain import ChainFolder, PlannedStage, SelectionRecord, file_digest, plan_stages
from asyncrl.run.earlier import unexported_steps, with_earlier_run

HELP = (
    "Run the stages of a chain, one after the other: recipes that are trained, and selections of responses. "
    "Run it again to resume at the stage and step."
)
EXAMPLES = (
    "asyncrl chain recipes/chains/arithmetic_cpu.yaml",
    "asyncrl chain recipes/chains/expert_iteration_cpu.yaml",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "chain",
        type=Path,
        help="a YAML file: stages, a list of recipes, {recipe, overrides} or {select, out}",
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when each stage reached its end; else the exit code of the first that did not. Raises InputError."""
    warn_on_stderr()
    chain = read_chain(arguments.chain)
    # What is wrong in a later stage is said before hours of the first.
    stages = plan_stages(chain)
    with ChainFolder(Path(chain.folder)) as folder:
        folder.open(chain.name, arguments.chain, stages)
        for stage in stages:
            check_selection(folder, stage)
        for stage in stages:
            print(f"stage {stage.number} of {len(stages)}: {stage.name}", flush=True)
            if isinstance(stage.stage, SelectStage):
                code = run_selection(folder, stage)
            else:
                recipe, overrides = Path(stage.stage.recipe), stage.stage.overrides
                code = train.run(argparse.Namespace(recipe=recipe, overrides=overrides))
            _report(folder)
            if code:
                return code
    return 0


def _report(folder: ChainFolder) -> None:
    """After each stage, so that the page tells the story as far as it is."""
    try:
        written = write_story(folder.path)
    except (InputError, OSError) as error:
        # A stage that ended before its first step has nothing to tell.
        print(f"The report of the chain was not written: {error}")
        return
    print(f"{', '.join(str(shown(path)) for path in written)}: the chain as one story", flush=True)


def check_selection(folder: ChainFolder, stage: PlannedStage) -> None:
    """Raises InputError for options that cannot be, and for a file that this stage did not write."""
    if not isinstance(stage.stage, SelectStage):
        return
    known, out = folder.selection(stage.number), stage.place
    Request.of(_arguments(stage.stage))
    title = f"stage {stage.number}: out is {shown(out)}, which"
    if known is None and out.exists():
        raise InputError(f"{title} exists, and this chain did not write it. Name another file, or remove it.")
    is_whole = known is not None and known.state == "finished" and out.exists()
    if is_whole and known is not None and known.digest != file_digest(out):
        raise InputError(
            f"{title} has changed since it was selected. Put it back, or remove it to select it again."
        )


def run_selection(folder: ChainFolder, stage: PlannedStage) -> int:
    """The exit code, as that of `asyncrl select`. A selection that is whole is passed over; one that was
    broken off asks only for the responses that it lacks. Raises InputError."""
    assert isinstance(stage.stage, SelectStage)
    known, out = folder.selection(stage.number), stage.place
    if known is not None and known.state == "finished" and out.exists():
        print(f"{shown(out)} is selected: {known.num_lines:,} lines.")
        return 0
    recipe = stage.recipe
    if recipe is not None and not unexported_steps(recipe):
        recipe = with_earlier_run(recipe)
    record = SelectionRecord(
        settings=stage.settings(),
        state="running",
        written_seconds=time.time(),
        model=None if recipe is None else recipe.model.path,
        wall_seconds=0.0 if known is None else known.wall_seconds,
        cpu_seconds=0.0 if known is None else known.cpu_seconds,
    )

    def write(now: SelectionRecord) -> None:
        folder.write_selection(stage.number, now)

    code, account = 1, None
    with _measured(record, write) as used:
        try:
            code, account = select.selected(_arguments(stage.stage))
        finally:
            write(_ended(used(), account, out))
    return code


def _ended(record: SelectionRecord, account: Account | None, out: Path) -> SelectionRecord:
    lines = 0 if account is None else account.fates["responses"][Fate.WRITTEN]
    if account is None or not lines:
        return record.model_copy(update={"state": "stopped"})
    return record.model_copy(
        update={
            "state": "finished",
            "account": account.as_json(),
            "num_lines": lines,
            "digest": file_digest(out),
        }
    )


@contextlib.contextmanager
def _measured(
    record: SelectionRecord, write: Callable[[SelectionRecord], None]
) -> Iterator[Callable[[], SelectionRecord]]:
    """Writes `record` with what was used so far, every INTERVAL_SECONDS. Yields the record of the moment."""
    meter = UsageMeter(lambda: (), gpus={}, num_gpus=0)
    is_over = threading.Event()
    lock = threading.Lock()

    def used() -> SelectionRecord:
        with lock:
            meter.discover()
            found = meter.sample()
        return record.model_copy(
            update={
                "written_seconds": time.time(),
                "wall_seconds": record.wall_seconds + sum(u.wall_seconds for u in found if u.name == RUN),
                "cpu_seconds": record.cpu_seconds + sum(u.cpu_seconds or 0.0 for u in found if u.name != RUN),
            }
        )

    def watch() -> None:
        while not is_over.wait(INTERVAL_SECONDS):
            write(used())

    write(record)
    thread = threading.Thread(target=watch, name="usage of a selection", daemon=True)
    thread.start()

    def last() -> SelectionRecord:
        is_over.set()
        thread.join()
        return used()

    try:
        yield last
    finally:
        is_over.set()


def _arguments(stage: SelectStage) -> argparse.Namespace:
    """As the command line has them."""
    return argparse.Namespace(
        **stage.model_dump(exclude={"select", "out", "set", "at"}),
        recipe=Path(stage.select),
        out=Path(stage.out),
        settings=stage.set,
        at=None if stage.at is None else str(stage.at),
        # The stage's own file, whose record a kill left behind; another one is refused before.
        force=True,
        json=False,
    )
