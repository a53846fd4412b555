"""Groups of a run: a list, newest first, and one of them with the text of each token.

Reads the journal on every call, so the page follows a live run.
"""

import asyncio
import math
from collections.abc import Iterator
from typing import Any, TypedDict, cast

from aiohttp import web

from asyncrl.journal.reader import GroupFilter
from asyncrl.journal.rows import GroupColumns, GroupSummary, SegmentRow, TrajectoryColumns, TrajectoryRow
from asyncrl.observe.token_text import TokenTexts
from asyncrl.page.request import answer, run_of, whole
from asyncrl.page.runs import Run


class PageSegment(TypedDict):
    """Neighbouring chunks of one version."""

    version: int
    is_continued: bool
    staleness: int | None
    """In versions, at the step that trained it first; None before that."""
    tokens: list[list[Any]]
    """[text, token, log-prob or None] of each."""


class PageTrajectory(TrajectoryColumns):
    num_prompt_tokens: int
    segments: list[PageSegment]


class PageGroup(GroupColumns):
    trajectories: list[PageTrajectory]


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/api/runs/{run}/groups", _groups)
    router.add_get(r"/api/runs/{run}/groups/{group_id:\d{1,18}}", _group)


def exported(run: Run, *, num_groups: int) -> dict[str, Any]:
    """The newest `num_groups` groups, whole."""
    path = f"/api/runs/{run.name}/groups"
    rows = list_groups(run, GroupFilter(limit=num_groups))
    details = {f"{path}/{row['group_id']}": read_group(run, row["group_id"]) for row in rows}
    return {path: rows, **details}


def list_groups(run: Run, wanted: GroupFilter) -> list[GroupSummary]:
    return run.journal.groups(wanted)


def read_group(run: Run, group_id: int) -> PageGroup | None:
    """A group whose segments hold [text, token, log-prob] per token and their staleness at training."""
    group = run.journal.group(group_id)
    if group is None:
        return None
    trajectories = [_trajectory(run.texts, t, group["step"]) for t in group["trajectories"]]
    return cast(PageGroup, {**group, "trajectories": trajectories})


async def _groups(request: web.Request) -> web.Response:
    wanted = GroupFilter(
        state=request.query.get("state"),
        step=whole(request, "step"),
        outcome=request.query.get("outcome"),
        before=whole(request, "before"),
    )
    return await answer(list_groups, run_of(request), wanted)


async def _group(request: web.Request) -> web.Response:
    group_id = int(request.match_info["group_id"])
    group = await asyncio.to_thread(read_group, run_of(request), group_id)
    if group is None:
        raise web.HTTPNotFound(text=f"There is no group {group_id}.")
    return web.json_response(group)


def _trajectory(texts_of: TokenTexts, trajectory: TrajectoryRow, step: int | None) -> PageTrajectory:
    response = [token for segment in trajectory["segments"] for token in segment["tokens"]]
    texts = iter(texts_of(trajectory["prompt_tokens"], response))
    segments = [
        PageSegment(
            version=segment["version"],
            is_continued=segment["is_continued"],
            # Step n trains version n - 1 on its batch.
            staleness=None if step is None else step - 1 - segment["version"],
            tokens=_tokens(texts, segment),
        )
        for segment in _joined(trajectory["segments"])
    ]
    kept = {name: value for name, value in trajectory.items() if name not in ("prompt_tokens", "text")}
    row = {**kept, "num_prompt_tokens": len(trajectory["prompt_tokens"]), "segments": segments}
    return cast(PageTrajectory, row)


def _joined(segments: list[SegmentRow]) -> list[SegmentRow]:
    """Neighbours of one version as one segment: the journal has a row per chunk that was streamed."""
    joined: list[SegmentRow] = []
    for segment in segments:
        if joined and joined[-1]["version"] == segment["version"]:
            joined[-1]["tokens"] += segment["tokens"]
            joined[-1]["logprobs"] += segment["logprobs"]
        else:
            joined.append({**segment, "tokens": [*segment["tokens"]], "logprobs": [*segment["logprobs"]]})
    return joined


def _tokens(texts: Iterator[str], segment: SegmentRow) -> list[list[Any]]:
    return [
        # A log-prob may be infinite or NaN, which JSON does not have.
        [next(texts), token, round(logprob, 5) if math.isfinite(logprob) else None]
        for token, logprob in zip(segment["tokens"], segment["logprobs"], strict=True)
    ]
