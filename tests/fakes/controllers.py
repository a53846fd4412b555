"""A controller between fake servers, as the launcher assembles it: real wires, real journal, no processes."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from fakes.engine import FakeEngine
from fakes.model_folder import write_tokenizer
from fakes.notebook import Notebook
from fakes.supervisor import FakeSupervisor

from asyncrl.controller.assemble import assemble
from asyncrl.controller.controller import Controller
from asyncrl.controller.inputs import Inputs
from asyncrl.journal.writer import Journal
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import parse_recipe
from asyncrl.records import EnvironmentSpec, Task, VerifierSpec
from asyncrl.run.metrics_file import Metrics
from asyncrl.serving.sglang.http import new_session
from asyncrl.tasks.verifier_cache import VerifierCache
from asyncrl.turns.conversation import Conversations


def make_recipe(**sections: Any) -> Recipe:
    raw = {
        "name": "t",
        "model": {"path": "m"},
        "data": {"train": "d", "heldout": "h"},
        "rollout": {"groups_per_batch": 2, "samples_per_group": 2, "max_staleness": 1, "max_new_tokens": 8},
        "trainer": {"num_steps": 4},
        "evaluation": {"every_steps": 2, "samples_per_task": 2},
        "serving": {"request_timeout_seconds": 30},
    }
    for name, section in sections.items():
        raw[name] = {**raw.get(name, {}), **section}  # type: ignore[dict-item]
    return parse_recipe(raw, source="test")


def make_tasks(count: int, environment: EnvironmentSpec | None = None, verifier: str = "exact") -> list[Task]:
    spec = VerifierSpec(verifier)
    return [Task(f"train:{n}", f"{n}", (5, 6), "7", spec, environment) for n in range(count)]


@contextlib.asynccontextmanager
async def controller_on(
    folder: Path,
    recipe: Recipe,
    engines: list[FakeEngine],
    evaluators: Sequence[FakeEngine] = (),
    *,
    supervisor: FakeSupervisor | None = None,
    added_servers: Sequence[str] = (),
    known: Metrics | None = None,
    conversations: Conversations | None = None,
    verifier: str = "exact",
    recorded: Sequence[Task] = (),
) -> AsyncIterator[tuple[Controller, Notebook]]:
    notebook = Notebook()
    inputs = Inputs(
        recipe,
        make_tasks(50, None if conversations is None else EnvironmentSpec("game"), verifier),
        make_tasks(3 if recipe.data.heldout else 0),
        TextCodec(write_tokenizer(folder / "m")),
        VerifierCache(folder),
        32,
        recorded=tuple(recorded),
    )
    journal = Journal(folder / "journal.sqlite")
    async with new_session() as session:
        controller = assemble(
            inputs,
            journal=journal,
            session=session,
            supervisor=supervisor or FakeSupervisor(),
            observer=notebook,
            server_urls=[engine.url for engine in engines],
            added_servers=added_servers,
            evaluation_urls=[engine.url for engine in evaluators],
            run_folder=folder / "run",
            known=known,
            conversations=conversations,
        )
        async with controller:
            yield controller, notebook
    journal.close()
