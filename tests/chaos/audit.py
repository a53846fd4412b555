"""The audit of a chaos run: what its journal has promised must stay true, and each token has one fate."""

import hashlib
import itertools
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from fakes.whole_run import WholeRun

GROUPS_PER_BATCH = 8

_TOKENS = """
SELECT trajectory_id, position, version, tokens, logprobs FROM segments
UNION ALL SELECT trajectory_id, position, NULL, tokens, x'' FROM observations
ORDER BY trajectory_id, position"""
_LINES = """
SELECT trajectory_id, branch_of, group_id, state, admitted_version, taken_version, outcome, t.finish
FROM trajectories t JOIN groups USING (group_id)"""
_HELD = """
SELECT coalesce(sum(length(tokens) / 4), 0) FROM segments JOIN trajectories USING (trajectory_id)
JOIN groups g USING (group_id) WHERE state = 'open'
OR (state IN ('ready', 'taken') AND EXISTS (
    SELECT 1 FROM trajectories r WHERE r.advantage IS NOT NULL
    AND r.trajectory_id = coalesce(trajectories.branch_of, trajectories.trajectory_id)))"""


@dataclass(frozen=True)
class Part:
    """A run of tokens of a trajectory or branch."""

    position: int
    version: int | None
    """None for what was observed."""
    tokens: bytes
    logprobs: bytes

    def size(self) -> int:
        return len(self.tokens) // 4

    def each(self) -> Iterator[tuple[int | None, bytes, bytes]]:
        """(version, token, log-prob) of each token."""
        for at in range(0, len(self.tokens), 4):
            yield self.version, self.tokens[at : at + 4], self.logprobs[at : at + 4]


@dataclass(frozen=True)
class Line:
    """A trajectory or a branch, as the journal has it at one moment."""

    name: str
    root: str
    group: int
    state: str
    admitted_version: int
    taken_version: int | None
    outcome: str | None
    """The trajectory's verdict, also for a branch."""
    finish: str | None
    parts: tuple[Part, ...]

    def digests(self) -> list[bytes]:
        """One for the tokens up to each, with their versions and log-probs."""
        running = hashlib.sha256()
        found = []
        for token in itertools.chain.from_iterable(part.each() for part in self.parts):
            running.update(repr(token).encode())
            found.append(running.digest())
        return found

    def is_compacted(self) -> bool:
        return self.state in ("trained", "dropped") and not self.parts

    def faults(self) -> Iterator[str]:
        """Holes, overlaps, and versions that no policy of this group can have."""
        end, newest = 0, self.admitted_version
        for part in self.parts:
            if part.position != end:
                yield f"{self.name} has a part at {part.position}, expected {end}"
            end = part.position + part.size()
            if part.version is None:
                continue
            if part.version < newest:
                yield f"{self.name} has version {part.version} behind version {newest}"
            newest = max(newest, part.version)
            if len(part.logprobs) != len(part.tokens):
                yield f"{self.name} has {part.size()} tokens and {len(part.logprobs) // 4} log-probs"
        if self.taken_version is not None and newest > self.taken_version:
            yield f"{self.name} has version {newest} and was taken by version {self.taken_version}"


@dataclass
class Look:
    """The journal at one moment."""

    steps: dict[int, int]
    """Group -> step of every committed batch."""
    verdicts: dict[str, str]
    """Finished trajectory -> outcome."""
    lines: dict[str, Line]
    calls: list[tuple[str, int, int, int, int]]
    """(trajectory, ordinal, choice, branch, turn)."""
    answered: list[tuple[str, int]]
    """(trajectory or branch, turn) of each observation."""
    counters: dict[str, int]
    held_tokens: int


def look_at(run: WholeRun) -> Look:
    """One consistent state."""
    uri = f"file:{run.run_folder}/journal.sqlite?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as journal:
        journal.execute("BEGIN")

        def read(sql: str) -> list[Any]:
            return journal.execute(sql).fetchall()

        ((version,),) = read("SELECT coalesce(max(version), 0) FROM commits")
        parts: dict[str, list[Part]] = defaultdict(list)
        for name, *part in read(_TOKENS):
            parts[name].append(Part(*part))
        lines = {}
        outcomes = dict(read("SELECT trajectory_id, outcome FROM trajectories"))
        for name, branch_of, group, state, admitted, taken, _, finish in read(_LINES):
            root = branch_of or name
            found = tuple(parts[name])
            lines[name] = Line(name, root, group, state, admitted, taken, outcomes[root], finish, found)
        return Look(
            dict(read(f"SELECT group_id, taken_version + 1 FROM groups WHERE taken_version < {version}")),
            {name: outcome for name, outcome in outcomes.items() if outcome is not None},
            lines,
            read("SELECT trajectory_id, ordinal, choice, branch, turn FROM calls"),
            read("SELECT trajectory_id, turn FROM observations"),
            dict(read("SELECT name, value FROM counters")),
            int(read(_HELD)[0][0]),
        )


@dataclass
class Audit:
    """Each look checks the journal, and that nothing that the last look saw is gone or changed."""

    run: WholeRun
    may_abandon: bool = False
    """Whether an agent may leave what was sampled for it, by another way after a restart."""
    faults: list[str] = field(default_factory=list)
    last: Look | None = None
    num_abandoned: int = 0

    def look(self) -> None:
        now, before = look_at(self.run), self.last
        self._check(now)
        if before is not None:
            self._compare("the step of group", before.steps, now.steps)
            self._compare("the verdict of trajectory", before.verdicts, now.verdicts)
            self._compare_tokens(before, now)
        self.last = now

    def _check(self, now: Look) -> None:
        for step, size in Counter(now.steps.values()).items():
            if size != GROUPS_PER_BATCH:
                self.faults.append(f"step {step} has {size} groups, expected {GROUPS_PER_BATCH}")
        for line in now.lines.values():
            self.faults += line.faults()
            if now.lines[line.root].group != line.group:
                self.faults.append(f"{line.name} is in group {line.group}, its trajectory is not")
        turns: dict[str, list[int]] = defaultdict(list)
        for name, turn in now.answered:
            turns[name].append(turn)
        for name, found in turns.items():
            if sorted(found) != list(range(len(found))):
                self.faults.append(f"the answered turns of {name} are {sorted(found)}")
        self._check_calls(now, turns)
        self._check_accounts(now)

    def _check_calls(self, now: Look, turns: dict[str, list[int]]) -> None:
        """Each call has its turn, and no turn has two."""
        places: Counter[tuple[str, int, int]] = Counter()
        for name, ordinal, choice, branch, turn in now.calls:
            places[name, branch, turn] += 1
            line = f"{name}.{branch}" if branch else name
            if line not in now.lines or turn > len(turns[line]):
                self.faults.append(f"call {ordinal}:{choice} of {name} has no turn {turn} of branch {branch}")
        self.faults += [f"turn {place} answers {count} calls" for place, count in places.items() if count > 1]

    def _check_accounts(self, now: Look) -> None:
        dropped = sum(value for name, value in now.counters.items() if name.startswith("tokens_dropped"))
        accounted = now.counters.get("tokens_trained", 0) + dropped + now.held_tokens
        if now.counters.get("tokens_generated", 0) != accounted:
            self.faults.append(f"conservation: {now.counters}, {now.held_tokens} tokens held")

    def _compare(self, what: str, before: dict[Any, Any], after: dict[Any, Any]) -> None:
        for key, value in before.items():
            if after.get(key) != value:
                self.faults.append(f"{what} {key} was {value!r} and is now {after.get(key)!r}")

    def _compare_tokens(self, before: Look, now: Look) -> None:
        """Earlier tokens, with versions and log-probs, must be the beginning of the present ones."""
        for name, line in before.lines.items():
            known = line.digests()
            after = now.lines.get(name)
            if not known or (after is not None and after.is_compacted()):
                continue
            found = after.digests() if after is not None else []
            if found[len(known) - 1 : len(known)] != known[-1:]:
                self._lost(name, len(known), len(found))
            elif line.finish is not None and len(found) > len(known):
                self.faults.append(f"{name} had ended with {len(known)} tokens and now has {len(found)}")

    def _lost(self, name: str, before: int, now: int) -> None:
        if self.may_abandon:
            self.num_abandoned += 1
        else:
            self.faults.append(f"{name} had {before} tokens, of which {now} or none are the same now")

    def tokens_a_snapshot_would_lose(self) -> int:
        """Tokens that exist only since the last checkpoint: lost where the queue is part of the snapshot."""
        (version,) = self.run.query("SELECT coalesce(max(version), 0) FROM commits")[0]
        sql = (
            "SELECT coalesce(sum(length(tokens) / 4), 0) FROM segments JOIN trajectories USING "
            "(trajectory_id) JOIN groups USING (group_id) "
            f"WHERE taken_version IS NULL OR taken_version >= {version}"
        )
        return int(self.run.query(sql)[0][0])
