"""The page that explains a refusal or a failure: by the module that raised it, for a recipe by the key."""

import re
import sys
import traceback
from collections.abc import Iterator

OF_FAILURES = "docs/failures.md"
PAGES = {
    module: page
    for page, modules in {
        "docs/agents.md": "asyncrl.rollout.agents",
        "docs/alarms.md": "asyncrl.observe.alarms",
        "docs/algorithms.md": (
            "asyncrl.algorithms asyncrl.commands.algorithms asyncrl.rollout.complete "
            "asyncrl.rollout.filter asyncrl.trainer.parts asyncrl.trainer.step"
        ),
        "docs/audit.md": "asyncrl.commands.audit asyncrl.readers.audit",
        "docs/doctor.md": "asyncrl.commands.doctor asyncrl.launch.doctor asyncrl.system",
        "docs/evaluation.md": "asyncrl.commands.eval asyncrl.evaluation asyncrl.launch.evaluated_models",
        "docs/evaluation.md#benchmarks": "asyncrl.data.benchmarks",
        "docs/evaluation.md#turns-and-agents": "asyncrl.commands.chat asyncrl.commands.chat_answers",
        OF_FAILURES: (
            "asyncrl.controller asyncrl.launch asyncrl.loops asyncrl.replay asyncrl.rollout asyncrl.run "
            "asyncrl.trainer"
        ),
        "docs/gpus.md": "asyncrl.system.gpus",
        "docs/gpus.md#more-of-sglangs-options": "asyncrl.launch.engine_options",
        "docs/gpus.md#ray": "asyncrl.launch.site",
        "docs/gpus.md#servers": "asyncrl.launch.servers asyncrl.serving",
        "docs/gpus.md#several-machines-without-ray": (
            "asyncrl.commands.serve asyncrl.commands.servers asyncrl.launch.engine_only asyncrl.wire"
        ),
        "docs/gpus.md#which-process-gets-which-gpus": "asyncrl.launch.placement",
        "docs/init.md": "asyncrl.commands.init asyncrl.launch.first_recipe",
        "docs/journal.md": "asyncrl.commands.journal asyncrl.journal",
        "docs/lora.md": "asyncrl.trainer.checkpoints",
        "docs/metrics.md": "asyncrl.observe",
        "docs/models.md": "asyncrl.model",
        "docs/page.md": "asyncrl.commands.view asyncrl.readers.page",
        "docs/page.md#is-my-run-alive": "asyncrl.commands.status asyncrl.readers.status asyncrl.run.status",
        "docs/planning.md": (
            "asyncrl.commands.plan asyncrl.launch.meters.fits asyncrl.launch.machine_check "
            "asyncrl.launch.preflight asyncrl.readers.planning"
        ),
        "docs/python.md": "asyncrl.launch.python",
        "docs/recipes.md": "asyncrl.commands asyncrl.recipe",
        "docs/recipes.md#data-as-it-is-published": "asyncrl.data.columns",
        "docs/recipes.md#models": "asyncrl.launch.prepare",
        "docs/recipes.md#prompt-templates": "asyncrl.data.prompts",
        "docs/recipes.md#recipes-to-start-from": "asyncrl.examples",
        "docs/recipes.md#rows": "asyncrl.data asyncrl.tasks",
        "docs/recipes.md#rows-that-teach": (
            "asyncrl.commands.difficulty asyncrl.data.column_copies asyncrl.evaluation.difficulty"
        ),
        "docs/recipes.md#tasks-that-a-gym-makes": "asyncrl.data.gym",
        "docs/report.md": "asyncrl.commands.report",
        "docs/report.md#compare-runs": "asyncrl.commands.compare asyncrl.readers.compare",
        "docs/report.md#train-a-step-again": "asyncrl.commands.reproduce asyncrl.run.reproduction",
        "docs/sandbox.md": "asyncrl.commands.sandbox sandbox",
        "docs/stages.md": "asyncrl.tasks.demonstration asyncrl.tasks.demonstrations",
        "docs/stages.md#a-critic-from-an-earlier-run": "asyncrl.tasks.recorded",
        "docs/stages.md#chains": (
            "asyncrl.commands.chain asyncrl.readers.chain asyncrl.recipe.chain asyncrl.run.chain"
        ),
        "docs/stages.md#from-one-stage-to-the-next": "asyncrl.run.earlier",
        "docs/stages.md#selection": (
            "asyncrl.commands.select asyncrl.commands.select_answers asyncrl.readers.selection"
        ),
        "docs/trackers.md": "asyncrl.commands.track asyncrl.readers.trackers",
        "docs/turns.md": "asyncrl.launch.turn_trial asyncrl.tasks.openings asyncrl.turns",
        "verifiers/README.md": (
            "asyncrl.commands.verify asyncrl.commands.verify_data asyncrl.tasks.verifier_cache verifiers"
        ),
        "verifiers/README.md#a-verifier-of-your-own": "asyncrl.launch.trial",
    }.items()
    for module in modules.split()
}
"""Module, or the package around it, to the page about its refusals. The longest name counts."""
OF_THE_CALLER = (
    "asyncrl.commands.main",
    "asyncrl.commands.parser",
    "asyncrl.recipe.shipped",
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
        if page == PAGES["asyncrl.recipe"] and (key := _key_in(str(error))) is not None:
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
