"""The fate of each response, group and row of a selection; they add up to what was seen."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Fate(StrEnum):
    """Ordered by how far a response came: a group, or a row, has the fate of the one that came furthest."""

    NOT_GRADED = "not graded"
    NO_ROW = "data.train has no such row"
    EVALUATED = "asks what is evaluated"
    SOURCE = "not of --source"
    ROW = "not of --rows"
    STEP = "not of --steps"
    VERSION = "not of --versions"
    LENGTH = "not of --length"
    COMPACTED = "compacted: its text is gone"
    BRANCHED = "its conversation has branches"
    FAULT = "a fault"
    NO_GOLD = "--verifier cannot read its gold"
    REPEATED = "repeats an earlier response"
    NOT_CORRECT = "not correct"
    NO_ANSWER = "no answer to vote for"
    TIED = "no answer has the most votes"
    OUTVOTED = "outvoted"
    SCORE = "not of --score"
    NO_PARTNER = "no other response to pair with"
    LIMIT = "beyond the limit per row"
    WRITTEN = "written"


ORDER = {fate: place for place, fate in enumerate(Fate)}
UNITS = ("rows", "groups", "responses")


def furthest(fates: Iterable[Fate], otherwise: Fate = Fate.NOT_GRADED) -> Fate:
    """The fate of the response that came furthest; `otherwise` without any."""
    return max(fates, key=ORDER.__getitem__, default=otherwise)


@dataclass
class Account:
    """Counts what was seen where it is read, and fates where they are decided."""

    seen: Counter[str] = field(default_factory=Counter)
    """By unit."""
    fates: dict[str, Counter[Fate]] = field(default_factory=lambda: {unit: Counter() for unit in UNITS})
    num_generated: int = 0
    """Responses that the journal does not have, among those seen."""
    num_generated_tokens: int = 0
    """Their tokens."""

    def see_groups(self, num_groups: int) -> None:
        self.seen["groups"] += num_groups

    def see_row(self, num_responses: int, generated_tokens: Sequence[int] = ()) -> None:
        """A row with its responses, generated ones among them, whose numbers of tokens are named."""
        self.seen["rows"] += 1
        self.seen["responses"] += num_responses
        self.num_generated += len(generated_tokens)
        self.num_generated_tokens += sum(generated_tokens)

    def settle(self, groups: Mapping[int, Sequence[Fate]], generated: Sequence[Fate], row: Fate) -> None:
        """The fates of a row's journaled responses, group by group, of its generated ones, and of the row
        where it has none."""
        of_groups = [furthest(fates) for fates in groups.values()]
        self.fates["groups"].update(of_groups)
        responses = [*generated, *(fate for fates in groups.values() for fate in fates)]
        self.fates["responses"].update(responses)
        self.fates["rows"][furthest([*responses, *of_groups], row)] += 1

    def check(self, *, num_written: int) -> None:
        """Raises AssertionError where something seen has no fate, or two, or where the file does not hold
        `num_written` responses: a defect, never to be ignored."""
        for unit in UNITS:
            total = self.fates[unit].total()
            if total != self.seen[unit]:
                raise AssertionError(
                    f"the selection saw {self.seen[unit]} {unit} and accounts for {total}: {self.fates[unit]}"
                )
        told = self.fates["responses"][Fate.WRITTEN]
        if told != num_written:
            raise AssertionError(f"the selection wrote {num_written} responses and accounts for {told}")

    def as_json(self) -> dict[str, object]:
        """Fates by unit, without those that nothing has."""
        fates = {
            unit: {fate.value: count for fate, count in sorted(found.items(), key=lambda f: -ORDER[f[0]])}
            for unit, found in self.fates.items()
        }
        seen = {unit: self.seen[unit] for unit in UNITS}
        made = {"generated": self.num_generated, "generated_tokens": self.num_generated_tokens}
        return {"seen": seen, **made, **fates}

    def lines(self) -> list[tuple[str, ...]]:
        """(fate, rows, groups, responses), what was written first; the last line is what was seen."""
        present = [fate for fate in reversed(Fate) if any(self.fates[unit][fate] for unit in UNITS)]
        shown = [Fate.WRITTEN, *(fate for fate in present if fate is not Fate.WRITTEN)]
        rows = [(fate.value, *(f"{self.fates[unit][fate]:,}" for unit in UNITS)) for fate in shown]
        return [*rows, ("seen", *(f"{self.seen[unit]:,}" for unit in UNITS))]
