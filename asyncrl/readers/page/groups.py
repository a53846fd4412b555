"""Groups of a run: a list, newest first, and one of them with the text of each token.

Reads the journal on every call, so the page follows a live run.
"""

import asyncio
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict, cast

from aiohttp import web

from asyncrl.journal.reader import GroupFilter
from asyncrl.journal.rows import (
    CallRow,
    GroupColumns,
    GroupSummary,
    MessageRow,
    ObservationRow,
    SegmentRow,
    TrajectoryColumns,
    TrajectoryRow,
    as_text,
)
from asyncrl.journal.search import search_text
from asyncrl.model.token_text import TokenTexts
from asyncrl.readers.page.runs import Run, answer, run_of, whole
from asyncrl.records import branch_number
from asyncrl.system.words import shortened

MOST_CHARACTERS = 4000
"""Most of one text that a page is sent; the head and the tail of a longer one."""


class PageCall(TypedDict):
    name: str
    """Empty where it could not be read."""
    arguments: list[tuple[str, str]]
    """Name and value, which is JSON where it is not text."""
    error: str
    """Why it could not be made."""
    output: str
    is_error: bool


class PageObservation(TypedDict):
    position: int
    """Position in the response, which counts sampled and observed tokens."""
    turn: int
    """The turn that it answers, from 0."""
    turn_finish: str
    num_tokens: int
    seconds: float | None
    reward: float | None
    text: str
    """All that the model reads, with what the chat template writes. Empty where the trajectory is told
    without its text, as are calls and messages."""
    calls: list[PageCall]
    messages: list[MessageRow]


def page_observation(row: ObservationRow, texts: Sequence[str] | None) -> PageObservation:
    """`texts` of all tokens of the response; None: without text."""
    has_text = texts is not None
    text = "".join(texts[row["position"] : row["position"] + len(row["tokens"])]) if texts else ""
    return PageObservation(
        position=row["position"],
        turn=row["turn"],
        turn_finish=row["turn_finish"],
        num_tokens=len(row["tokens"]),
        seconds=row["seconds"],
        reward=row["reward"],
        text=_short(text),
        calls=[_call(call) for call in row["calls"]] if has_text else [],
        messages=[{**each, "text": _short(each["text"])} for each in row["messages"]] if has_text else [],
    )


def _short(text: str) -> str:
    return shortened(text, MOST_CHARACTERS)


def _call(call: CallRow) -> PageCall:
    return PageCall(
        name=_short(call["name"]),
        arguments=[(_short(name), _short(as_text(value))) for name, value in call["arguments"].items()],
        error=_short(call["error"]),
        output=_short(call["output"]),
        is_error=call["is_error"],
    )


MOST_TOKENS = 20_000
"""Most tokens of a group that are sent at once: a browser shows them without a pause."""
LONGEST_SEARCH = 200
"""Characters."""


class PageSegment(TypedDict):
    """Neighbouring chunks of one version, within one turn."""

    position: int
    """Position in the response, which counts sampled and observed tokens."""
    version: int
    is_continued: bool
    staleness: int | None
    """Staleness in versions, at the step that trained it first; None before that."""
    num_tokens: int
    tokens: list[list[Any]]
    """[text, token, log-prob] of each, None for a number that is not finite; where a step kept more of them,
    then importance log-ratio, entropy and advantage, else None for these; and last the teacher's log-prob.
    Empty where the trajectory is told without its text."""


class PageTrajectory(TrajectoryColumns):
    num_prompt_tokens: int
    num_tokens: int
    """Sampled ones."""
    num_observed_tokens: int
    has_text: bool
    """False: ask for the trajectory by itself."""
    trained_step: int | None
    """The step that kept what it knew of the tokens; None where none did."""
    segments: list[PageSegment]
    observations: list[PageObservation]


class PageGroup(GroupColumns):
    trajectories: list[PageTrajectory]


def hold_groups(run: Run, num_groups: int) -> dict[str, Any]:
    """The newest `num_groups` groups, whole."""
    path = f"/api/runs/{run.name}/groups"
    rows = list_groups(run, GroupFilter(limit=num_groups + 1))
    found: dict[str, Any] = {}
    if len(rows) > num_groups:
        rows = rows[:num_groups]
        found[f"{path}/held"] = f"the newest {num_groups:,} groups (--groups)"
    found[path] = rows
    for row in rows:
        found[where := f"{path}/{row['group_id']}"] = group = read_group(run, row["group_id"])
        for each in [] if group is None else group["trajectories"]:
            if not each["has_text"]:
                branch = branch_number(each["trajectory_id"])
                name = f"{each['sample']}.{branch}" if branch else each["sample"]
                found[f"{where}/{name}"] = read_trajectory(run, row["group_id"], each["sample"], branch)
    return found


def list_groups(run: Run, wanted: GroupFilter) -> list[GroupSummary]:
    return run.journal.groups(wanted)


def read_group(run: Run, group_id: int) -> PageGroup | None:
    """A group with the text of its first trajectories, as many as MOST_TOKENS allows."""
    group = run.journal.group(group_id)
    if group is None:
        return None
    trajectories: list[PageTrajectory] = []
    left = MOST_TOKENS
    for trajectory in group["trajectories"]:
        left -= len(_response(trajectory))
        has_text = left >= 0 or not trajectories
        trajectories.append(_trajectory(run.texts, trajectory, group["step"], has_text=has_text))
    return cast(PageGroup, {**group, "trajectories": trajectories})


def read_trajectory(run: Run, group_id: int, sample: int, branch: int = 0) -> PageTrajectory | None:
    """One of a group, or a branch of it, with its text."""
    group = run.journal.group(group_id)
    if group is None:
        return None
    place = sample, branch
    found = (t for t in group["trajectories"] if (t["sample"], branch_number(t["trajectory_id"])) == place)
    return next((_trajectory(run.texts, t, group["step"], has_text=True) for t in found), None)


def search(run: Run, text: str, below: int | None) -> dict[str, Any]:
    """Hits, and the group below which the search continues; 0: all was searched."""
    found = search_text(run.journal, text, below=below)
    return {"hits": found.hits, "below": found.searched_down_to}


async def ask_groups(request: web.Request) -> web.Response:
    wanted = GroupFilter(
        state=request.query.get("state"),
        step=whole(request, "step"),
        reason=request.query.get("reason"),
        repeated=whole(request, "repeated"),
        admitted=whole(request, "admitted"),
        task=request.query.get("task"),
        outcome=request.query.get("outcome"),
        before=whole(request, "before"),
    )
    return await answer(list_groups, run_of(request), wanted)


async def ask_group(request: web.Request) -> web.Response:
    group_id = int(request.match_info["group_id"])
    group = await asyncio.to_thread(read_group, run_of(request), group_id)
    if group is None:
        raise web.HTTPNotFound(text=f"There is no group {group_id}.")
    return web.json_response(group)


async def ask_trajectory(request: web.Request) -> web.Response:
    group_id, sample = (int(request.match_info[name]) for name in ("group_id", "sample"))
    branch = int(request.match_info.get("branch", 0))
    found = await asyncio.to_thread(read_trajectory, run_of(request), group_id, sample, branch)
    if found is None:
        named = f"branch {branch} of a sample {sample}" if branch else f"sample {sample}"
        raise web.HTTPNotFound(text=f"There is no {named} of a group {group_id}.")
    return web.json_response(found)


async def ask_search(request: web.Request) -> web.Response:
    text = request.query.get("text", "")
    if not 1 <= len(text) <= LONGEST_SEARCH:
        raise web.HTTPBadRequest(text=f"text has {len(text)} characters, expected 1 to {LONGEST_SEARCH}.")
    return await answer(search, run_of(request), text, whole(request, "below"))


def _trajectory(
    texts_of: TokenTexts, trajectory: TrajectoryRow, step: int | None, *, has_text: bool
) -> PageTrajectory:
    texts = texts_of(trajectory["prompt_tokens"], _response(trajectory)) if has_text else None
    known = _known(trajectory)
    segments = [
        PageSegment(
            position=segment["position"],
            version=segment["version"],
            is_continued=segment["is_continued"],
            # Step n trains version n - 1 on its batch.
            staleness=None if step is None else step - 1 - segment["version"],
            num_tokens=len(segment["tokens"]),
            tokens=[] if texts is None else _tokens(texts, segment, known),
        )
        for segment in _joined(trajectory["segments"])
    ]
    observations = [page_observation(each, texts) for each in trajectory["observations"]]
    left_out = ("prompt_tokens", "text", "trained", "teacher_logprobs")
    kept = {name: value for name, value in trajectory.items() if name not in left_out}
    row = {
        **kept,
        "num_prompt_tokens": len(trajectory["prompt_tokens"]),
        "num_tokens": sum(segment["num_tokens"] for segment in segments),
        "num_observed_tokens": sum(observation["num_tokens"] for observation in observations),
        "has_text": has_text,
        "trained_step": None if trajectory["trained"] is None else trajectory["trained"]["step"],
        "segments": segments,
        "observations": observations,
    }
    return cast(PageTrajectory, row)


def _response(trajectory: TrajectoryRow) -> list[int]:
    """All tokens after the prompt, observed ones included: each at its position."""
    parts = [(segment["position"], segment["tokens"]) for segment in trajectory["segments"]]
    parts += [(observation["position"], observation["tokens"]) for observation in trajectory["observations"]]
    return [token for _, tokens in sorted(parts) for token in tokens]


def _known(trajectory: TrajectoryRow) -> Iterator[list[float | None]]:
    """[importance log-ratio, entropy, advantage] of each sampled token, without the last ones where no step
    kept them; then the teacher's log-prob, where it has scored them."""
    trained, teacher = trajectory["trained"], trajectory["teacher_logprobs"]
    if trained is None:
        return ([None, None, None, _finite(logprob, 5)] for logprob in teacher)
    own = trained["advantages"] or itertools.repeat(trajectory["advantage"])
    columns = [trained["log_ratios"], trained["entropies"], own, *([teacher] if teacher else [])]
    return ([_finite(number, 4) for number in row] for row in zip(*columns, strict=False))


def _finite(number: float | None, digits: int) -> float | None:
    """JSON has no infinity and no NaN."""
    return round(number, digits) if number is not None and math.isfinite(number) else None


def _joined(segments: list[SegmentRow]) -> list[SegmentRow]:
    """Neighbours of one version as one segment: the journal has a row per chunk that was streamed. An
    observation in between parts them."""
    joined: list[SegmentRow] = []
    for segment in segments:
        last = joined[-1] if joined else None
        end = None if last is None else last["position"] + len(last["tokens"])
        if last is not None and last["version"] == segment["version"] and end == segment["position"]:
            last["tokens"] += segment["tokens"]
            last["logprobs"] += segment["logprobs"]
        else:
            joined.append({**segment, "tokens": [*segment["tokens"]], "logprobs": [*segment["logprobs"]]})
    return joined


def _tokens(
    texts: Sequence[str], segment: SegmentRow, known: Iterator[list[float | None]]
) -> list[list[Any]]:
    """`texts` of all tokens of the response."""
    numbers = zip(segment["tokens"], segment["logprobs"], strict=True)
    return [
        [texts[position], token, _finite(logprob, 5), *next(known, [])]
        for position, (token, logprob) in enumerate(numbers, start=segment["position"])
    ]
