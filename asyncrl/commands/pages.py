"""The page that explains a refusal or a failure: found by the module that raised it, and for a recipe by the
key."""

import re
import sys
import traceback
from collections.abc import Iterator

_RECIPE = "asyncrl.recipe"
OF_FAILURES = "docs/failures.md"
PAGES = {
    "asyncrl.algorithms": "docs/algorithms.md",
    "asyncrl.launch.python": "docs/python.md",
    "asyncrl.commands.algorithms": "docs/algorithms.md",
    "asyncrl.commands.audit": "docs/audit.md",
    "asyncrl.commands.chain": "docs/stages.md#chains",
    "asyncrl.commands.chain_select": "docs/stages.md#chains",
    "asyncrl.commands.chat": "docs/evaluation.md#turns-and-agents",
    "asyncrl.commands.chat_answers": "docs/evaluation.md#turns-and-agents",
    "asyncrl.commands.compare": "docs/report.md#compare-runs",
    "asyncrl.commands.difficulty": "docs/recipes.md#rows-that-teach",
    "asyncrl.commands.doctor": "docs/doctor.md",
    "asyncrl.commands.eval": "docs/evaluation.md",
    "asyncrl.commands.init": "docs/init.md",
    "asyncrl.commands.journal": "docs/journal.md",
    "asyncrl.commands.plan": "docs/planning.md",
    "asyncrl.commands.plan_fits": "docs/planning.md",
    "asyncrl.commands.report": "docs/report.md",
    "asyncrl.commands.reproduce": "docs/report.md#train-a-step-again",
    "asyncrl.commands.sandbox": "docs/sandbox.md",
    "asyncrl.commands.select": "docs/stages.md#selection",
    "asyncrl.commands.select_answers": "docs/stages.md#selection",
    "asyncrl.commands.select_work": "docs/stages.md#selection",
    "asyncrl.commands.serve": "docs/gpus.md#several-machines-without-ray",
    "asyncrl.commands.servers": "docs/gpus.md#several-machines-without-ray",
    "asyncrl.commands.status": "docs/page.md#is-my-run-alive",
    "asyncrl.commands.track": "docs/trackers.md",
    "asyncrl.commands.verify": "verifiers/README.md",
    "asyncrl.commands.verify_data": "verifiers/README.md",
    "asyncrl.commands.view": "docs/page.md",
    "asyncrl.commands": "docs/recipes.md",
    "asyncrl.controller": OF_FAILURES,
    "asyncrl.data": "docs/recipes.md#rows",
    "asyncrl.data.benchmarks": "docs/evaluation.md#benchmarks",
    "asyncrl.data.column_copies": "docs/recipes.md#rows-that-teach",
    "asyncrl.data.columns": "docs/recipes.md#data-as-it-is-published",
    "asyncrl.data.gym": "docs/recipes.md#tasks-that-a-gym-makes",
    "asyncrl.data.prompts": "docs/recipes.md#prompt-templates",
    "asyncrl.evaluation": "docs/evaluation.md",
    "asyncrl.evaluation.difficulty": "docs/recipes.md#rows-that-teach",
    "asyncrl.examples": "docs/recipes.md#recipes-to-start-from",
    "asyncrl.journal": "docs/journal.md",
    "asyncrl.observe.alarms": "docs/alarms.md",
    "asyncrl.launch": OF_FAILURES,
    "asyncrl.launch.base_model": "docs/recipes.md#models",
    "asyncrl.launch.doctor": "docs/doctor.md",
    "asyncrl.launch.engine_options": "docs/gpus.md#more-of-sglangs-options",
    "asyncrl.launch.evaluated_models": "docs/evaluation.md",
    "asyncrl.launch.first_recipe": "docs/init.md",
    "asyncrl.launch.placement": "docs/gpus.md#which-process-gets-which-gpus",
    "asyncrl.launch.preflight": "docs/planning.md",
    "asyncrl.launch.machine_check": "docs/planning.md",
    "asyncrl.launch.remote_server": "docs/gpus.md#several-machines-without-ray",
    "asyncrl.launch.servers": "docs/gpus.md#servers",
    "asyncrl.launch.site": "docs/gpus.md#ray",
    "asyncrl.launch.trial": "verifiers/README.md#a-verifier-of-your-own",
    "asyncrl.launch.turn_trial": "docs/turns.md",
    "asyncrl.loops": OF_FAILURES,
    "asyncrl.model": "docs/models.md",
    "asyncrl.model.supported": "docs/lora.md",
    "asyncrl.observe": "docs/metrics.md",
    "asyncrl.readers.planning": "docs/planning.md",
    "asyncrl.readers.audit": "docs/audit.md",
    "asyncrl.readers.chain": "docs/stages.md#chains",
    "asyncrl.readers.compare": "docs/report.md#compare-runs",
    "asyncrl.readers.page": "docs/page.md",
    "asyncrl.readers.selection": "docs/stages.md#selection",
    "asyncrl.readers.status": "docs/page.md#is-my-run-alive",
    "asyncrl.readers.trackers": "docs/trackers.md",
    _RECIPE: "docs/recipes.md",
    "asyncrl.recipe.chain": "docs/stages.md#chains",
    "asyncrl.replay": OF_FAILURES,
    "asyncrl.rollout": OF_FAILURES,
    "asyncrl.rollout.agents": "docs/agents.md",
    "asyncrl.rollout.filter": "docs/algorithms.md",
    "asyncrl.rollout.complete": "docs/algorithms.md",
    "asyncrl.run": OF_FAILURES,
    "asyncrl.run.chain": "docs/stages.md#chains",
    "asyncrl.run.earlier": "docs/stages.md#from-one-stage-to-the-next",
    "asyncrl.run.reproduction": "docs/report.md#train-a-step-again",
    "asyncrl.run.status": "docs/page.md#is-my-run-alive",
    "asyncrl.serving": "docs/gpus.md#servers",
    "asyncrl.system": "docs/doctor.md",
    "asyncrl.system.environment": "README.md",
    "asyncrl.system.gpus": "docs/gpus.md",
    "asyncrl.tasks": "docs/recipes.md#rows",
    "asyncrl.tasks.demonstration": "docs/stages.md",
    "asyncrl.tasks.demonstrations": "docs/stages.md",
    "asyncrl.tasks.openings": "docs/turns.md",
    "asyncrl.tasks.recorded": "docs/stages.md#a-critic-from-an-earlier-run",
    "asyncrl.tasks.verifier_cache": "verifiers/README.md",
    "asyncrl.trainer": OF_FAILURES,
    "asyncrl.trainer.checkpoints": "docs/lora.md",
    "asyncrl.trainer.parts": "docs/algorithms.md",
    "asyncrl.trainer.step": "docs/algorithms.md",
    "asyncrl.turns": "docs/turns.md",
    "asyncrl.wire": "docs/gpus.md#several-machines-without-ray",
    "sandbox": "docs/sandbox.md",
    "verifiers": "verifiers/README.md",
}
"""Module, or the package around it, to the page about its refusals. The longest name counts."""
OF_THE_CALLER = (
    "asyncrl.commands.main",
    "asyncrl.commands.parser",
    "asyncrl.system.hub",
    "asyncrl.system.plugins",
    "asyncrl.system.files",
    "asyncrl.system.paths",
)
"""Modules that are asked by many: the page is that of the module which asked."""
_KEY = re.compile(r"(?<![\w/.-])(?:([a-z_]\w*(?:\.[a-z_]\w*)+)(?![\w/.])|([a-z_]\w*)(?= is |=))")
"""A dotted name, or a name with its value."""


def page_about(error: BaseException) -> str | None:
    """Where to read about a refusal: a page with its anchor, or the command that prints a recipe's key. None
    for an error that no module of ours raised."""
    for module in _raising(error):
        if module in OF_THE_CALLER or (page := page_of(module)) is None:
            continue
        if page == PAGES[_RECIPE] and (key := _key_in(str(error))) is not None:
            return f"asyncrl keys {key}"
        return page
    return None


def say_failure(error: BaseException, *, has_page: bool = True) -> int:
    """Prints a failure that is no mistake in the input, with its page unless programs read it: its code."""
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    if has_page:
        print(f"Read: {page_about(error) or OF_FAILURES}", file=sys.stderr)
    return 1


def page_of(module: str) -> str | None:
    """The page of a module, that of the nearest package around it where it has none of its own."""
    while module not in PAGES:
        module, dot, _ = module.rpartition(".")
        if not dot:
            return None
    return PAGES[module]


def _raising(error: BaseException) -> Iterator[str]:
    """Names of modules, from the one that raised the first cause outwards."""
    if error.__cause__ is not None:
        yield from _raising(error.__cause__)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    yield from (str(frame.f_globals.get("__name__", "")) for frame in reversed(frames))


def _key_in(text: str) -> str | None:
    """The first key or section of a recipe that the sentence names; of an unknown key, its section."""
    from asyncrl.recipe.keys import names

    known = names()
    for dotted, single in _KEY.findall(text):
        key = dotted or single
        while key not in known and "." in key:
            key = key.rpartition(".")[0]
        if key in known:
            return str(key)
    return None
