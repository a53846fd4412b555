"""Tasks whose answers changed over the versions of the policy, the most changeable first."""

from typing import Any

from aiohttp import web

from asyncrl.journal.responses import ChangedTask, read_changed_tasks
from asyncrl.readers.page.runs import Run, answer, run_of, whole

PAGE_SIZE = 25


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/api/runs/{run}/answers", _answers)


def exported(run: Run, *, num_groups: int) -> dict[str, Any]:
    """The changed tasks, at most `num_groups` of them."""
    path = f"/api/runs/{run.name}/answers"
    tasks = read_changed_tasks(run.journal, limit=num_groups + 1)
    held = {f"{path}/held": f"the {num_groups:,} most changeable tasks (--groups)"}
    return {path: tasks[:num_groups], **(held if len(tasks) > num_groups else {})}


def read_changes(run: Run, offset: int) -> list[ChangedTask]:
    return read_changed_tasks(run.journal, offset=offset, limit=PAGE_SIZE)


async def _answers(request: web.Request) -> web.Response:
    offset = max(0, whole(request, "offset") or 0)
    return await answer(read_changes, run_of(request), offset)
