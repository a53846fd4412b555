"""The ledger of a run: the fates of its groups, step by step, and of its tokens in all."""

from dataclasses import asdict
from typing import Any, TypedDict

from aiohttp import web

from asyncrl.journal.conservation import Conservation, read_conservation, read_ledger
from asyncrl.journal.counters import REPEATED, read_counters
from asyncrl.readers.page.runs import Run, answer, run_of, whole

MOST_EXPORTED = 1000
"""Steps."""


class Books(TypedDict):
    """The conservation table."""

    generated_tokens: int
    generated_groups: int
    missing_tokens: int
    """0 when every generated token is accounted for."""
    repeated_tokens: int
    """Trained tokens that were trained again, counted each time."""
    fates: list[dict[str, Any]]
    """name, tokens, groups and share of the generated tokens."""


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/api/runs/{run}/ledger", _ledger)


def exported(run: Run, *, num_groups: int) -> dict[str, Any]:
    """The last steps."""
    path = f"/api/runs/{run.name}/ledger"
    rows = read_ledger(run.journal, limit=MOST_EXPORTED)
    held = {f"{path}/held": f"the last {MOST_EXPORTED:,} steps"}
    return {path: rows, **(held if rows and rows[-1]["step"] > 1 else {})}


def read_books(run: Run) -> Books:
    books = Conservation(read_conservation(run.journal.path), run.journal.fates())
    return Books(
        generated_tokens=books.generated_tokens(),
        generated_groups=books.generated_groups(),
        missing_tokens=books.missing_tokens(),
        repeated_tokens=read_counters(run.journal).get(REPEATED, 0),
        fates=[asdict(fate) for fate in books.fates()],
    )


async def _ledger(request: web.Request) -> web.Response:
    before = whole(request, "before")
    return await answer(lambda journal: read_ledger(journal, before=before), run_of(request).journal)
