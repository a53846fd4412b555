"""Tasks whose answers changed over the versions of the policy, the most changeable first."""

from typing import Any, TypedDict

from aiohttp import web

from asyncrl.journal.answers import ChangedTask, count_answers, read_changed_tasks
from asyncrl.page.request import answer, run_of, whole
from asyncrl.page.runs import Run

PAGE_SIZE = 25


class Changes(TypedDict):
    num_graded: int
    """Groups so far: whether there is anything new."""
    tasks: list[ChangedTask]


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/api/runs/{run}/answers", _answers)


def exported(run: Run, *, num_groups: int) -> dict[str, Any]:
    """As many tasks as groups."""
    return {f"/api/runs/{run.name}/answers": read_changes(run, limit=num_groups)}


def read_changes(run: Run, *, offset: int = 0, limit: int = PAGE_SIZE) -> Changes:
    return Changes(
        num_graded=count_answers(run.journal),
        tasks=read_changed_tasks(run.journal, offset=offset, limit=limit),
    )


async def _answers(request: web.Request) -> web.Response:
    offset = max(0, whole(request, "offset") or 0)
    return await answer(lambda run: read_changes(run, offset=offset), run_of(request))
