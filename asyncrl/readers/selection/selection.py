"""A selection, row by row in the order of the data: read, filter, grade again, choose, write."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

from asyncrl.data.digests import question_digest
from asyncrl.data.rows import Row
from asyncrl.errors import InputError
from asyncrl.journal.reader import JournalReader
from asyncrl.journal.responses import GradedResponse, ResponseTokens, read_graded, read_tokens
from asyncrl.readers.audit.grading import AuditTasks, Drawn, Regraded, grade_again
from asyncrl.readers.selection.candidate import Account, Candidate, Fate, Filters
from asyncrl.readers.selection.choices import Choice, Chosen, Rules, Vote
from asyncrl.readers.selection.written import LineMaker, Output
from asyncrl.recipe import Recipe
from asyncrl.rollout.equal_answers import answer_classes, is_readable
from asyncrl.rollout.grade import Grader, score_of


@dataclass(frozen=True, slots=True)
class Regrading:
    recipe: Recipe
    tasks: AuditTasks

    async def __call__(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those whose gold the other verifier reads, with its verdicts, in their order. Raises NoVerdicts."""
        responses = [each.recorded() for each in candidates]
        drawn = Drawn(responses, len(responses), 0, 0)
        found: dict[str, Regraded] = {}
        await grade_again(self.recipe, drawn, self.tasks, found, lambda: None)
        return [
            replace(
                each,
                score=score_of(found[each.response_id].other),
                verifier=self.tasks.tasks[each.row_id].verifier,
            )
            for each in candidates
            if each.response_id in found
        ]


GROUPS_AT_ONCE = 256
"""Groups whose texts are in memory together."""
Regrade = Callable[[Sequence[Candidate]], Awaitable[list[Candidate]]]
"""The responses that another verifier has a gold for, with its verdicts."""


class Asked(NamedTuple):
    """A row of the data with its groups, of which there may be none."""

    row: Row
    groups: Sequence[int]


@dataclass(frozen=True, slots=True)
class Found:
    """A row with its responses."""

    row: Row
    graded: list[GradedResponse]
    fates: dict[str, Fate]
    """Trajectory id -> why it is left out before its verdict is looked at."""
    groups: Sequence[int]
    refused: Fate | None = None
    """Why the whole row is left out."""

    def usable(self) -> list[GradedResponse]:
        return [each for each in self.graded if each.trajectory_id not in self.fates]

    def num_compacted(self) -> int:
        return sum(fate is Fate.COMPACTED for fate in self.fates.values())


@dataclass
class Reading:
    """Rows with their responses, those left out that cannot be selected."""

    journal: JournalReader | None
    groups: Mapping[str, Sequence[int]]
    """Row id -> its groups."""
    filters: Filters
    evaluated: Collection[bytes]
    """Digests of the questions that evaluations ask."""

    def parts(self, rows: Iterable[Row]) -> Iterator[list[Found]]:
        """The rows with their responses, some at a time."""
        waiting: list[Asked] = []
        num_groups = 0
        for row in rows:
            asked = Asked(row, self.groups.get(row.row_id, ()))
            waiting.append(asked)
            num_groups += max(1, len(asked.groups))
            if num_groups >= GROUPS_AT_ONCE:
                yield self._read(waiting)
                waiting, num_groups = [], 0
        if waiting:
            yield self._read(waiting)

    def _read(self, asked: Sequence[Asked]) -> list[Found]:
        by_group: dict[int, list[GradedResponse]] = {}
        for each in self.graded([group for one in asked for group in one.groups]):
            by_group.setdefault(each.group_id, []).append(each)
        return [self._found(one, by_group) for one in asked]

    def graded(self, groups: Sequence[int]) -> list[GradedResponse]:
        return [] if self.journal is None or not groups else read_graded(self.journal, groups)

    def _found(self, asked: Asked, by_group: Mapping[int, list[GradedResponse]]) -> Found:
        row, groups = asked
        graded = [each for group in groups for each in by_group.get(group, ())]
        refused = self.filters.refuses_row(row.row_id)
        if refused is None and question_digest(row.prompt) in self.evaluated:
            refused = Fate.EVALUATED
        if refused is not None:
            fates = {each.trajectory_id: refused for each in graded}
        else:
            reasons = {each.trajectory_id: self._why_not(each) for each in graded}
            fates = {name: fate for name, fate in reasons.items() if fate is not None}
        return Found(row, graded, fates, groups, refused)

    def _why_not(self, each: GradedResponse) -> Fate | None:
        if each.outcome is None:
            return Fate.NOT_GRADED
        if (fate := self.filters.refuses(each)) is not None:
            return fate
        if each.outcome == "fault":
            return Fate.FAULT
        if each.text is None or each.is_compacted:
            return Fate.COMPACTED
        return Fate.BRANCHED if each.has_branches else None


@dataclass
class Selection:
    """The way from rows with responses to lines, and the account of it."""

    reading: Reading
    choice: Choice
    rules: Rules
    maker: LineMaker
    output: Output
    grader: Grader | None = None
    """For choices that ask which answers are equal."""
    regrade: Regrade | None = None
    """None keeps the recorded verdicts."""
    account: Account = field(default_factory=Account)
    _texts: set[bytes] = field(default_factory=set)
    """Digests of (question, response), of all rows: two rows may ask the same."""

    async def write(
        self, rows: Iterable[Row], generated: Mapping[str, Sequence[Candidate]], told: Callable[[int], None]
    ) -> None:
        """All lines of `rows`. `told` gets how many more rows are done."""
        known: set[str] = set()
        self.account.see_groups(sum(map(len, self.reading.groups.values())))
        for part in self.reading.parts(rows):
            known.update(found.row.row_id for found in part)
            verdicts = await self._verdicts(part, generated)
            for found in part:
                await self._settle(found, verdicts.get(found.row.row_id, []), generated)
            told(len(part))
        self._count_unknown(known)
        self.account.check(num_written=self.output.num_lines * (2 if self.choice.is_pairs else 1))

    async def _verdicts(
        self, part: Sequence[Found], generated: Mapping[str, Sequence[Candidate]]
    ) -> dict[str, list[Candidate]]:
        """Row id -> its responses, with the verdicts that count."""
        found = [Candidate.of(e, one.row.row_id, one.row.verifier) for one in part for e in one.usable()]
        if self.regrade is not None:
            found = await self.regrade(found)
        asked = [one.row.row_id for one in part if one.refused is None]
        by_row: dict[str, list[Candidate]] = {}
        for each in [*found, *(each for row_id in asked for each in generated.get(row_id, ()))]:
            by_row.setdefault(each.row_id, []).append(each)
        return by_row

    async def _settle(
        self, found: Found, candidates: list[Candidate], generated: Mapping[str, Sequence[Candidate]]
    ) -> None:
        made = [] if found.refused is not None else list(generated.get(found.row.row_id, ()))
        self.account.see_row(len(found.graded) + len(made), [each.num_tokens for each in made])
        graded = {each.response_id for each in candidates}
        fates = {**found.fates, **self._left_out(found.row, candidates)}
        usable = [each.trajectory_id for each in found.usable()]
        fates |= {name: Fate.NO_GOLD for name in usable if name not in graded}
        looked = [each for each in candidates if each.response_id not in fates]
        repeated = [each for each in candidates if fates.get(each.response_id) is Fate.REPEATED]
        chosen = self.choice.choose(looked, self.rules, await self._votes(looked, repeated))
        fates |= chosen.fates
        self._write_lines(found.row, chosen)
        of_groups: dict[int, list[Fate]] = {group: [] for group in found.groups}
        for each in found.graded:
            of_groups[each.group_id].append(fates[each.trajectory_id])
        own = found.refused or Fate.NOT_GRADED
        self.account.settle(of_groups, [fates[each.response_id] for each in made], own)

    def _left_out(self, row: Row, candidates: Sequence[Candidate]) -> dict[str, Fate]:
        """Faults and repeated texts, and generated responses of another length."""
        fates: dict[str, Fate] = {}
        asked = question_digest(row.prompt)
        turned = [each.response_id for each in candidates if each.has_turns]
        tokens = self._tokens(turned)
        for each in candidates:
            fate = self.reading.filters.refuses_generated(each) if each.group_id is None else None
            if each.score.correctness is None:
                fate = Fate.FAULT
            if fate is None:
                said = each.text
                if each.has_turns:
                    said = repr([token for part in tokens[each.response_id].parts for token in part.tokens])
                digest = blake2b(asked + said.encode("utf-8", "surrogatepass"), digest_size=16).digest()
                fate = Fate.REPEATED if digest in self._texts else None
                self._texts.add(digest)
            if fate is not None:
                fates[each.response_id] = fate
        return fates

    async def _votes(self, looked: Sequence[Candidate], repeated: Sequence[Candidate]) -> list[Vote]:
        """The answers of a row, most votes first: a text votes as often as it was given. None where the
        choice does not ask, or where the verifier does not say what an answer is."""
        voters = [*looked, *repeated]
        if not self.choice.votes or not voters or not all(is_readable(each.score) for each in voters):
            return []
        assert self.grader is not None
        scores = [each.score for each in voters]
        classes = await answer_classes(voters[0].verifier, scores, self.grader)
        return [Vote(len(places), [p for p in places if p < len(looked)]) for places in classes]

    def _write_lines(self, row: Row, chosen: Chosen) -> None:
        needs_tokens = self.maker.has_tokens or self.maker.has_turns
        journaled = [each for line in chosen.lines for each in line if each.generated is None]
        tokens = self._tokens([each.response_id for each in journaled] if needs_tokens else [])
        for each in journaled:
            if needs_tokens and each.num_tokens and not tokens[each.response_id].parts:
                raise InputError(
                    f"{each.response_id} was compacted while this read it (replay.keep_steps). Run the same "
                    f"command again."
                )
        for line in chosen.lines:
            self.output.add(self.maker.line(row, line, tokens))

    def _tokens(self, wanted: Sequence[str]) -> dict[str, ResponseTokens]:
        journal = self.reading.journal
        return {} if journal is None or not wanted else read_tokens(journal, wanted)

    def _count_unknown(self, known: Collection[str]) -> None:
        """Rows of the journal that the data does not have."""
        unknown = {row_id: groups for row_id, groups in self.reading.groups.items() if row_id not in known}
        for groups in unknown.values():
            graded = self.reading.graded(groups)
            self.account.see_row(len(graded))
            of_groups: dict[int, list[Fate]] = {group: [] for group in groups}
            for each in graded:
                of_groups[each.group_id].append(Fate.NO_ROW)
            self.account.settle(of_groups, [], Fate.NO_ROW)


def missing_responses(
    parts: Iterable[Sequence[Found]], *, wanted: int, replaces_compacted: bool
) -> dict[str, int]:
    """Row id -> how many responses it lacks: to `wanted`, and to those that it had before compaction. Rows
    that are left out lack none."""
    lacking: dict[str, int] = {}
    for found in (one for part in parts for one in part if one.refused is None):
        num_usable = len(found.usable())
        goal = num_usable + found.num_compacted() if replaces_compacted else 0
        lacking[found.row.row_id] = max(goal, wanted) - num_usable
    return {row_id: number for row_id, number in lacking.items() if number > 0}
