"""Responses of a journal read back: graded, trained, of a step, their lengths; how answers to a task changed;
and the record of each row of data.train, a view of `answers` and `groups` for which nothing is stored.
"""

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict, cast

from asyncrl.journal.connection import Readable
from asyncrl.journal.packing import NUMBER_BYTES, unpack_tokens
from asyncrl.records import DropReason, Observed, PolicyVersion, RowVisit, Segment

# Steps count from 1. A response that no step trained stands at the step after its admission, as in
# `trained_responses`.
_GROUPS = "SELECT task_id, group_id FROM groups ORDER BY group_id"
_RESPONSES = f"""
WITH members AS (SELECT trajectory_id, branch_of FROM trajectories
                 WHERE group_id IN (SELECT value FROM json_each(:groups))),
     names AS (SELECT trajectory_id FROM members),
     lengths AS (
         SELECT trajectory_id, SUM(LENGTH(tokens)) / {NUMBER_BYTES} AS tokens, MIN(version) AS low,
                MAX(version) AS high
         FROM segments WHERE trajectory_id IN names GROUP BY trajectory_id
         UNION ALL
         SELECT trajectory_id, num_tokens, version_min, version_max FROM compacted
         WHERE trajectory_id IN names)
SELECT g.group_id, t.trajectory_id, coalesce(g.taken_version, g.admitted_version) + 1, g.prompt, t.finish,
       t.outcome, t.correctness, t.reward, t.extracted, t.detail, t.text, coalesce(l.tokens, 0),
       coalesce(l.low, g.admitted_version), coalesce(l.high, g.admitted_version),
       EXISTS (SELECT 1 FROM compacted AS c WHERE c.trajectory_id = t.trajectory_id),
       EXISTS (SELECT 1 FROM observations AS o WHERE o.trajectory_id = t.trajectory_id),
       t.trajectory_id IN (SELECT branch_of FROM members WHERE branch_of IS NOT NULL)
FROM groups AS g JOIN trajectories AS t USING (group_id) LEFT JOIN lengths AS l USING (trajectory_id)
WHERE g.group_id IN (SELECT value FROM json_each(:groups)) AND t.branch_of IS NULL
ORDER BY g.group_id, t.sample
"""
_PROMPT_TOKENS = """
SELECT trajectory_id, prompt_tokens FROM trajectories
WHERE trajectory_id IN (SELECT value FROM json_each(:wanted))
"""
_PARTS = """
SELECT trajectory_id, position, version, tokens, NULL FROM segments
WHERE trajectory_id IN (SELECT value FROM json_each(:wanted))
UNION ALL
SELECT trajectory_id, position, NULL, tokens, notes FROM observations
WHERE trajectory_id IN (SELECT value FROM json_each(:wanted))
ORDER BY 1, 2
"""


class GradedResponse(NamedTuple):
    """A trajectory of a group, its branches left out."""

    group_id: int
    trajectory_id: str
    step: int
    """Step that trained it first."""
    prompt: str
    """The text that the model continued."""
    finish: str | None
    outcome: str | None
    """correct, wrong, no_answer, fault; None while it is not graded."""
    correctness: float | None
    reward: float | None
    extracted: str | None
    detail: str | None
    text: str | None
    """The text that the verifier read: of several turns the last one. None once compacted."""
    num_tokens: int
    """Sampled, without those of branches."""
    version_min: int
    version_max: int
    is_compacted: bool
    has_turns: bool
    """Something answered its first turn, and is still journaled."""
    has_branches: bool


class ResponseTokens(NamedTuple):
    """The tokens of one trajectory, without its branches."""

    prompt: list[int]
    parts: list[Segment | Observed]
    """In order; their log-probs are left out."""


def read_groups(journal: Readable) -> dict[str, list[int]]:
    """Task id -> its groups, in the order of admission, of every task that was asked."""
    found: dict[str, list[int]] = {}
    for task_id, group_id in journal.read(_GROUPS):
        found.setdefault(task_id, []).append(group_id)
    return found


def read_graded(journal: Readable, groups: Sequence[int]) -> list[GradedResponse]:
    """All responses of the groups, in the order of admission."""
    rows = journal.read(_RESPONSES, {"groups": json.dumps(list(groups))})
    return [GradedResponse(*row[:-3], *map(bool, row[-3:])) for row in rows]


def read_tokens(journal: Readable, wanted: Iterable[str]) -> dict[str, ResponseTokens]:
    """Trajectory id -> its tokens; nothing is left of compacted ones."""
    values = {"wanted": json.dumps(list(wanted))}
    found = {
        name: ResponseTokens(unpack_tokens(tokens), [])
        for name, tokens in journal.read(_PROMPT_TOKENS, values)
    }
    for name, _, version, tokens, notes in journal.read(_PARTS, values):
        own = unpack_tokens(tokens)
        found[name].parts.append(Observed(own, notes) if version is None else Segment(version, own, []))
    return found


def count_graded(journal: Readable) -> tuple[int, int]:
    """Graded responses, and those of them whose texts are there."""
    ((num_graded, num_texts),) = journal.read(
        "SELECT count(*), count(text) FROM trajectories WHERE outcome IS NOT NULL AND branch_of IS NULL"
    )
    return num_graded, num_texts


# Steps count from 1. A response that was dropped for no signal stands at the step after its admission.
_RECORDED = f"""
SELECT t.trajectory_id, g.task_id, coalesce(g.taken_version, g.admitted_version) + 1 AS step, t.text IS NULL
FROM groups AS g JOIN trajectories AS t USING (group_id)
WHERE t.branch_of IS NULL AND t.outcome IS NOT NULL AND step BETWEEN :first AND :last
      AND (g.taken_version IS NOT NULL AND (t.advantage IS NOT NULL OR t.outcome = 'fault')
           OR :has_dropped AND g.reason = '{DropReason.NO_SIGNAL.value}')
ORDER BY g.group_id, t.sample
"""
_RESPONSES_TRAINED_RESPONSES = """
SELECT t.trajectory_id, g.task_id, coalesce(g.taken_version, g.admitted_version) + 1, g.prompt, t.text,
       t.outcome, t.reward, t.extracted, t.detail
FROM json_each(:wanted) AS wanted JOIN trajectories AS t ON t.trajectory_id = wanted.value
     JOIN groups AS g USING (group_id)
WHERE t.text IS NOT NULL ORDER BY wanted.key
"""
ANY_STEP = (1, 2**53)


class RecordedResponse(NamedTuple):
    trajectory_id: str
    task_id: str
    step: int
    """Step that trained it first."""
    is_compacted: bool
    """Whether its text is no longer kept."""


@dataclass(frozen=True, slots=True)
class TrainedResponse:
    """A response with the verdict that it was trained by."""

    trajectory_id: str
    task_id: str
    step: int
    prompt: str
    text: str
    outcome: str
    """correct, wrong, no_answer, fault."""
    reward: float | None
    extracted: str | None
    detail: str


def read_recorded(
    journal: Readable, *, steps: tuple[int, int] = ANY_STEP, has_dropped: bool = False
) -> list[RecordedResponse]:
    """Responses that steps `steps` trained, both ends included, without their texts; faults of their groups
    too. With `has_dropped` also those of groups dropped for no signal. In order of admission."""
    first, last = steps
    rows = journal.read(_RECORDED, {"first": first, "last": last, "has_dropped": has_dropped})
    return [RecordedResponse(name, task_id, step, bool(gone)) for name, task_id, step, gone in rows]


def read_responses(journal: Readable, wanted: Sequence[str]) -> list[TrainedResponse]:
    """The responses with these trajectory ids in their order, without those that were compacted meanwhile."""
    rows = journal.read(_RESPONSES_TRAINED_RESPONSES, {"wanted": json.dumps(list(wanted))})
    return [
        TrainedResponse(name, task_id, step, prompt, text, outcome, reward, extracted, detail or "")
        for name, task_id, step, prompt, text, outcome, reward, extracted, detail in rows
    ]


_GROUPS_STEP_RESPONSES = "SELECT group_id FROM groups WHERE taken_version = ? ORDER BY group_id"
_RESPONSES_STEP_RESPONSES = f"""
WITH lines AS (SELECT trajectory_id, coalesce(branch_of, trajectory_id) AS root FROM trajectories
               WHERE group_id = :group),
     lengths AS (SELECT root, sum(length(tokens)) / {NUMBER_BYTES} AS num_tokens
                 FROM lines JOIN segments USING (trajectory_id) GROUP BY root)
SELECT t.outcome, coalesce(l.num_tokens, 0), t.text
FROM trajectories AS t LEFT JOIN lengths AS l ON l.root = t.trajectory_id
WHERE t.group_id = :group AND t.branch_of IS NULL AND t.outcome IS NOT NULL AND t.sample < :num_samples
ORDER BY t.sample
"""


class StepResponse(NamedTuple):
    outcome: str
    """correct, wrong, no_answer, fault."""
    num_tokens: int
    """Sampled, those of branches included."""
    text: str | None
    """The text that the verifier read: of several turns the last one. None once compacted."""


def read_step_responses(
    journal: Readable, version: PolicyVersion, *, num_samples: int
) -> Generator[list[StepResponse]]:
    """The graded responses of each group that the trainer took first at `version`; greedy baselines, which
    stand behind the `num_samples` of a group, are left out.

    A query each, on one connection: opening one parses the whole schema, which costs as much as ten groups.
    It is open until the generator ends or is closed. Raises InputError when the file is damaged.
    """
    with journal.reading() as db:
        for (group,) in db.execute(_GROUPS_STEP_RESPONSES, (version,)).fetchall():
            rows = db.execute(
                _RESPONSES_STEP_RESPONSES, {"group": group, "num_samples": num_samples}
            ).fetchall()
            yield [StepResponse(*row) for row in rows]


_SAMPLED = """
WITH streamed AS (SELECT trajectory_id, SUM(LENGTH(tokens)) / {bytes} AS r FROM segments GROUP BY 1
                  UNION ALL SELECT trajectory_id, num_tokens FROM compacted),
     known AS (SELECT group_id, LENGTH(prompt_tokens) / {bytes} AS p, s.r AS r
               FROM trajectories JOIN streamed s USING (trajectory_id)),
     mean AS (SELECT AVG(p) AS p FROM known WHERE p > 0),
     each AS (SELECT group_id, CASE WHEN p > 0 THEN p ELSE coalesce((SELECT p FROM mean), 0) END AS p, r
              FROM known),
     prompts AS (SELECT MAX(p) AS p FROM each GROUP BY group_id)
SELECT (SELECT SUM(p) FROM prompts), SUM(r), SUM(MAX(r - 1, 0)),
       SUM(MAX(r - 1, 0) * (p + r / 2.0)) + (SELECT SUM(p * (p + 1) / 2.0) FROM prompts)
FROM each
"""


class SampledTokens(NamedTuple):
    """Totals of a run's sampling, for `asyncrl.model.flops.generation_flops`."""

    num_prompt_tokens: float
    """Prompt tokens, each group's once; a compacted prompt counts as the mean of the others."""
    num_sampled_tokens: int
    num_fed_tokens: int
    """Sampled tokens without the last one of each response, which nothing follows."""
    num_looks: float
    """Positions that the prompts' and the fed tokens look at, each at itself too."""


def read_sampled(journal: Readable) -> SampledTokens:
    """Totals of all trajectories, whatever their fate."""
    ((prompts, sampled, fed, looks),) = journal.read(_SAMPLED.format(bytes=NUMBER_BYTES))
    return SampledTokens(prompts or 0.0, sampled or 0, fed or 0, looks or 0.0)


# A visit is a graded group of a task: the share of right trajectories and the answer that most of them gave.
# Between two visits the answer may change, the share may, or both. The changes are summed up while the run is
# written, in the order of grading, so the most changeable tasks are found without a look at the others.
_CHANGES = """
SELECT task_id, num_visits, num_changes, moved FROM tasks WHERE num_changes + moved > 0
ORDER BY num_changes + moved DESC, task_id LIMIT :limit OFFSET :offset
"""
_VISITS = """
SELECT a.task_id, group_id, g.admitted_version, g.taken_version + 1, g.state, a.num_graded, a.correct,
       a.answer, a.num_same
FROM json_each(:tasks) AS wanted JOIN answers AS a ON a.task_id = wanted.value
     JOIN groups AS g USING (group_id)
WHERE group_id >= coalesce((
    SELECT group_id FROM answers WHERE task_id = wanted.value
    ORDER BY group_id DESC LIMIT 1 OFFSET :most - 1), 0)
ORDER BY group_id
"""
_PROMPTS = """
SELECT group_id, substr(prompt, :longest) FROM groups WHERE group_id IN (SELECT value FROM json_each(:last))
"""


class Visit(TypedDict):
    group_id: int
    admitted_version: int
    step: int | None
    """Step that trained it first."""
    state: str
    num_graded: int
    correct: float
    """Mean raw score of its trajectories."""
    answer: str | None
    """The one that most of them gave."""
    num_same: int
    """Trajectories that gave it."""


class ChangedTask(TypedDict):
    task_id: str
    prompt: str
    """The prompt; its end, where it is long."""
    num_visits: int
    num_changes: int
    """Visits whose answer differs from that of the visit before."""
    moved: float
    """Sum of the changes of `correct` from visit to visit, each without its sign."""
    visits: list[Visit]
    """The last MOST_VISITS, oldest first."""


MOST_VISITS = 40
LONGEST_PROMPT = 400


def read_changed_tasks(journal: Readable, *, offset: int = 0, limit: int = 25) -> list[ChangedTask]:
    """Tasks whose answers changed, the most changeable first: changes, plus how far the share moved."""
    rows = journal.read(_CHANGES, {"limit": limit, "offset": offset})
    visits: dict[str, list[Visit]] = {task_id: [] for task_id, *_ in rows}
    # A query opens the file: one for all tasks, not one for each.
    for task_id, *row in journal.read(_VISITS, {"tasks": json.dumps([*visits]), "most": MOST_VISITS}):
        visits[task_id].append(cast(Visit, dict(zip(Visit.__annotations__, row, strict=True))))
    last = json.dumps([each[-1]["group_id"] for each in visits.values()])
    prompts = dict(journal.read(_PROMPTS, {"longest": -LONGEST_PROMPT, "last": last}))
    return [
        ChangedTask(
            task_id=task_id,
            prompt=prompts[visits[task_id][-1]["group_id"]],
            num_visits=num_visits,
            num_changes=num_changes,
            moved=moved,
            visits=visits[task_id],
        )
        for task_id, num_visits, num_changes, moved in rows
    ]


_ROW_VISITS = """
SELECT a.task_id, g.prompt, a.group_id, a.version, a.num_graded, a.correct
FROM answers AS a JOIN groups AS g USING (group_id) ORDER BY a.group_id
"""
_ADMISSIONS = "SELECT task_id, prompt, admitted_version FROM groups ORDER BY group_id"
_PASS_RATES = """
SELECT task_id, sum(num_graded * correct) / sum(num_graded) FROM answers GROUP BY task_id ORDER BY task_id
"""


class Admission(NamedTuple):
    """The choice of a row for a group: that of group 0, 1, 2, ... in order."""

    task_id: str
    prompt: str
    version: PolicyVersion
    """The trainer's."""


def read_admissions(journal: Readable) -> Iterator[Admission]:
    for row in journal.read(_ADMISSIONS):
        yield Admission(*row)


def read_visits(journal: Readable) -> Iterator[tuple[str, str, RowVisit]]:
    """(task id, prompt, visit) of each graded group, in the order of admission."""
    for task_id, prompt, *visit in journal.read(_ROW_VISITS):
        yield task_id, prompt, RowVisit(*visit)


def read_pass_rates(journal: Readable) -> dict[str, float]:
    """Task id of each row that was graded -> mean raw score of all its trajectories, over all of the run."""
    return dict(journal.read(_PASS_RATES))
