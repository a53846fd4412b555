"""A text looked for in prompts, responses, answers, and what calls and environments said, the newest groups
first, a stretch of time at a call.

There is no index of words: it would double what a run writes. A call reads backwards until it has a page of
hits or its time is over, and says where the next one continues. Upper and lower case of ASCII are the same.
Compacted responses are gone; their prompts are still found. The response of a trajectory with several turns
is its last one: earlier ones are stored as tokens alone, but their calls are found with what answered them.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from asyncrl.journal.connection import Readable
from asyncrl.journal.rows import observed_texts

GROUPS_AT_ONCE = 32
"""Between two looks at the clock: at most some 30 MB of text."""
AROUND = 60
"""Characters before and after a hit that are shown."""
SECONDS = 0.5

_PROMPTS = """
SELECT group_id, task_id, prompt FROM groups
WHERE group_id BETWEEN :first AND :last AND prompt LIKE :pattern ESCAPE '\\' ORDER BY group_id DESC
"""
_RESPONSES = """
SELECT group_id, task_id, trajectory_id, sample, outcome, text, extracted
FROM trajectories JOIN groups USING (group_id)
WHERE group_id BETWEEN :first AND :last
AND (text LIKE :pattern ESCAPE '\\' OR extracted LIKE :pattern ESCAPE '\\')
ORDER BY group_id DESC, sample
"""
_OBSERVATIONS = """
SELECT group_id, task_id, trajectory_id, sample, outcome, notes
FROM observations JOIN trajectories USING (trajectory_id) JOIN groups USING (group_id)
WHERE group_id BETWEEN :first AND :last AND notes LIKE :in_json ESCAPE '\\'
ORDER BY group_id DESC, sample, position
"""


class Hit(TypedDict):
    group_id: int
    task_id: str
    trajectory_id: str | None
    """None: in the prompt."""
    sample: int | None
    outcome: str | None
    is_observed: bool
    """In a call or in what answered a turn, at the place of the sample."""
    before: str
    match: str
    after: str


@dataclass(frozen=True, slots=True)
class Found:
    hits: list[Hit]
    searched_down_to: int
    """Smallest group id that was read; continue below it. 0: all was read."""


def search_text(
    journal: Readable,
    text: str,
    *,
    below: int | None = None,
    limit: int = 50,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """The hits in groups with smaller ids than `below`; a group is read whole, so there may be some more."""
    if below is None:
        ((newest,),) = journal.read("SELECT max(group_id) FROM groups")
        below = 0 if newest is None else newest + 1
    # Notes are JSON, which writes some characters otherwise.
    patterns = {"pattern": _pattern(text), "in_json": _pattern(json.dumps(text)[1:-1])}
    hits: list[Hit] = []
    end = clock() + seconds
    while below > 0 and len(hits) < limit:
        first = max(0, below - GROUPS_AT_ONCE)
        hits += _hits(journal, text, {"first": first, "last": below - 1, **patterns})
        below = first
        if clock() >= end:
            break
    return Found(hits, below)


def _pattern(text: str) -> str:
    """Pattern of LIKE for anything with `text` in it."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def _hits(journal: Readable, text: str, parameters: dict[str, int | str]) -> list[Hit]:
    found = [
        _hit(text, prompt, group_id=group_id, task_id=task_id)
        for group_id, task_id, prompt in journal.read(_PROMPTS, parameters)
    ]
    for group_id, task_id, name, sample, outcome, response, extracted in journal.read(_RESPONSES, parameters):
        where = response if response and text.lower() in response.lower() else extracted or ""
        hit = _hit(text, where, group_id=group_id, task_id=task_id)
        found.append({**hit, "trajectory_id": name, "sample": sample, "outcome": outcome})
    for group_id, task_id, name, sample, outcome, notes in journal.read(_OBSERVATIONS, parameters):
        # The pattern also finds the names of fields.
        texts = (each for each in observed_texts(notes) if text.lower() in each.lower())
        if (where := next(texts, None)) is not None:
            hit = _hit(text, where, group_id=group_id, task_id=task_id)
            found.append(
                {**hit, "trajectory_id": name, "sample": sample, "outcome": outcome, "is_observed": True}
            )
    return sorted(found, key=lambda hit: -hit["group_id"])


def _hit(text: str, where: str, *, group_id: int, task_id: str) -> Hit:
    place = max(0, where.lower().find(text.lower()))
    end = place + len(text)
    return Hit(
        group_id=group_id,
        task_id=task_id,
        trajectory_id=None,
        sample=None,
        outcome=None,
        is_observed=False,
        before=where[max(0, place - AROUND) : place],
        match=where[place:end],
        after=where[end : end + AROUND],
    )
