"""The chains of the page, each as one story; those of the runs' own folders are found by themselves."""

from pathlib import Path
from typing import Any, TypedDict

from aiohttp import web

from asyncrl.errors import InputError
from asyncrl.readers.chain.story import read_story
from asyncrl.readers.chain.tables import brought, cost
from asyncrl.readers.page.runs import RUNS, answer


class Shown(TypedDict):
    """A chain as the page shows it."""

    name: str
    state: str
    story: dict[str, Any]
    """As report.json has it."""
    tables: list[dict[str, Any]]
    runs: dict[str, str]
    """Number of a stage -> the name that its run has on this page; only those that are on it."""
    problem: str | None
    """Why the chain cannot be read."""


def read_chains(folders: dict[str, Path], runs: dict[str, Path]) -> list[Shown]:
    """`folders` and `runs`: name on the page -> folder."""
    names = {folder: name for name, folder in runs.items()}
    return [_shown(name, folder, names) for name, folder in folders.items()]


def _shown(name: str, folder: Path, names: dict[Path, str]) -> Shown:
    try:
        story = read_story(folder)
    except (InputError, OSError) as error:
        return Shown(name=name, state="", story={}, tables=[], runs={}, problem=str(error))
    tables = [
        {
            "title": table.title,
            "header": list(table.header),
            "rows": [list(row) for row in table.rows],
            "note": table.note,
        }
        # The cards have what each stage began with and made.
        for table in (*brought(story), cost(story))
        if table.rows
    ]
    there = {str(stage.number): names.get(Path(stage.place)) for stage in story.stages}
    runs = {number: run for number, run in there.items() if run is not None}
    return Shown(
        name=name,
        state=story.state,
        story=story.model_dump(mode="json"),
        tables=tables,
        runs=runs,
        problem=None,
    )


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/api/chains", _chains)


async def _chains(request: web.Request) -> web.Response:
    runs = request.app[RUNS]
    return await answer(read_chains, runs.chains(), runs.folders())
