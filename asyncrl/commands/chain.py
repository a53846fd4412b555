"""`asyncrl chain CHAIN`: runs stages one after the other, each from what earlier ones made."""

import argparse
from pathlib import Path

from asyncrl.commands import train
from asyncrl.commands.chain_select import check_selection, run_selection
from asyncrl.errors import InputError
from asyncrl.observe.terminal.table import warn_on_stderr
from asyncrl.readers.chain.tables import write_story
from asyncrl.recipe.chain import SelectStage, read_chain
from asyncrl.recipe.file import shown
from asyncrl.run.chain import ChainFolder, PlannedStage, plan_stages

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
            code = _run_stage(folder, stage)
            _report(folder)
            if code:
                return code
    return 0


def _run_stage(folder: ChainFolder, stage: PlannedStage) -> int:
    if isinstance(stage.stage, SelectStage):
        return run_selection(folder, stage)
    words = argparse.Namespace(recipe=Path(stage.stage.recipe), overrides=stage.stage.overrides)
    return train.run(words)


def _report(folder: ChainFolder) -> None:
    """After each stage, so that the page tells the story as far as it is."""
    try:
        written = write_story(folder.path)
    except (InputError, OSError) as error:
        # A stage that ended before its first step has nothing to tell.
        print(f"The report of the chain was not written: {error}")
        return
    print(f"{', '.join(str(shown(path)) for path in written)}: the chain as one story", flush=True)
