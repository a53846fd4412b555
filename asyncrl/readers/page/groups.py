"""Groups of a run: a list, newest first, and one of them with the text of each token.

Reads the journal on every call, so the page follows a live run.
"""

import asyncio
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from aiohttp import web

from asyncrl.journal.reader import GroupFilter
from asyncrl.journal.rows import CallRow, GroupSummary, ObservationRow, SegmentRow, TrajectoryRow, as_text
from asyncrl.journal.search import search_text
from asyncrl.model.token_text import TokenTexts
from asyncrl.readers.page.runs import Run, answer, run_of, whole
from asyncrl.records import branch_number
from asyncrl.system.words import shortened

MOST_CHARACTERS = 4000
"""Most of one text that a page is sent; the head and the tail of a longer one."""


def page_observation(row: ObservationRow, texts: Sequence[str] | None) -> dict[str, Any]:
    """`texts` of all tokens of the response; None: without text, calls and messages.

    `position` counts sampled and observed tokens of the response, `turn` is the turn that it answers, from 0.
    `text` is all that the model reads, with what the chat template writes.
    """
    position, num_tokens = row["position"], len(row["tokens"])
    shown: dict[str, Any] = {"text": "", "calls": [], "messages": []}
    if texts is not None:
        shown = {
            "text": _short("".join(texts[position : position + num_tokens])),
            "calls": [_call(call) for call in row["calls"]],
            "messages": [{**each, "text": _short(each["text"])} for each in row["messages"]],
        }
    kept = {name: row[name] for name in ("position", "turn", "turn_finish", "seconds", "reward")}
    return {**kept, "num_tokens": num_tokens, **shown}


def _short(text: str) -> str:
    return shortened(text, MOST_CHARACTERS)


def _call(call: CallRow) -> dict[str, Any]:
    """`name` is empty where it could not be read, `error` says why it could not be made. An argument is a
    name and a value, which is JSON where it is not text."""
    return {
        "name": _short(call["name"]),
        "arguments": [(_short(name), _short(as_text(value))) for name, value in call["arguments"].items()],
        "error": _short(call["error"]),
        "output": _short(call["output"]),
        "is_error": call["is_error"],
    }


MOST_TOKENS = 20_000
"""Most tokens of a group that are sent at once: a browser shows them without a pause."""
LONGEST_SEARCH = 200
"""Characters."""


PageTrajectory = dict[str, Any]
"""Columns of a trajectory, and

- num_prompt_tokens, num_tokens (sampled ones), num_observed_tokens;
- has_text: False for one that is asked for by itself;
- trained_step: the step that kept what it knew of the tokens, None where none did;
- segments: neighbouring chunks of one version within one turn, with their `position` in the response, their
  `staleness` in versions at the step that trained them first (None before that), and `tokens`: [text, token,
  log-prob] of each, None for a number that is not finite; where a step kept more of them, then importance
  log-ratio, entropy and advantage, else None for these; and last the teacher's log-prob;
- observations: as `page_observation`.
"""


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


def read_group(run: Run, group_id: int) -> dict[str, Any] | None:
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
    return {**group, "trajectories": trajectories}


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
        {
            "position": segment["position"],
            "version": segment["version"],
            "is_continued": segment["is_continued"],
            # Step n trains version n - 1 on its batch.
            "staleness": None if step is None else step - 1 - segment["version"],
            "num_tokens": len(segment["tokens"]),
            "tokens": [] if texts is None else _tokens(texts, segment, known),
        }
        for segment in _joined(trajectory["segments"])
    ]
    observations = [page_observation(each, texts) for each in trajectory["observations"]]
    left_out = ("prompt_tokens", "text", "trained", "teacher_logprobs")
    return {
        **{name: value for name, value in trajectory.items() if name not in left_out},
        "num_prompt_tokens": len(trajectory["prompt_tokens"]),
        "num_tokens": sum(segment["num_tokens"] for segment in segments),
        "num_observed_tokens": sum(observation["num_tokens"] for observation in observations),
        "has_text": has_text,
        "trained_step": None if trajectory["trained"] is None else trajectory["trained"]["step"],
        "segments": segments,
        "observations": observations,
    }


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
