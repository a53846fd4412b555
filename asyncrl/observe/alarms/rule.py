"""Alarms: the numbers that a rule looks at, what it finds, and how that is told.

The history is a bounded window of a run's steps, and how the run began. A column that a row lacks, or that
holds no finite number, is unknown there. A step that is trained again replaces what was known of it and of
later ones.
"""

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

WINDOW_STEPS = 5
"""Steps that a mean is taken over: one batch says little."""
LOOK_BACK_STEPS = 20
"""How far back a trend is measured."""
MOST_STEPS = 64
MOST_EVALUATIONS = 32
SETTLED_AFTER_STEPS = 10
"""Steps of this start after which caches and allocators are filled."""
NaN = math.nan


class Evaluated(NamedTuple):
    """A held-out evaluation, and the training reward when it was made."""

    step: int
    accuracy: float
    half_width: float
    """Half of its 95% interval; 0 where it has none."""
    correct: float | None
    """Mean share of correct training responses at that step; None before the first one."""


class History:
    def __init__(self) -> None:
        self.rows: deque[tuple[int, dict[str, float]]] = deque(maxlen=MOST_STEPS)
        """(step, its numbers), in order; NaN for what was measured and is not finite."""
        self.evaluations: deque[Evaluated] = deque(maxlen=MOST_EVALUATIONS)
        self._texts: dict[str, str] = {}
        self.dropped: Mapping[str, Any] | None = None
        """Groups dropped since the last batch, as `DroppedGroups` counts them, where they are many."""
        self._first: list[dict[str, float]] = []
        self._known: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW_STEPS))
        self._settled: defaultdict[str, list[float]] = defaultdict(list)
        self._num_here = 0
        self._has_saved = False

    @property
    def step(self) -> int:
        return self.rows[-1][0] if self.rows else 0

    def add(self, row: Mapping[str, Any], *, is_of_this_start: bool = True) -> None:
        """A row as in metrics.jsonl."""
        step = int(row["step"])
        self.dropped = None
        while self.rows and self.rows[-1][0] >= step:
            self.rows.pop()
        numbers = {name: found for name, value in row.items() if (found := _number(value)) is not None}
        self.rows.append((step, numbers))
        self._texts = {name: value for name, value in row.items() if isinstance(value, str)}
        if len(self._first) < WINDOW_STEPS:
            self._first.append(numbers)
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        for name, value in finite.items():
            self._known[name].append(value)
        if is_of_this_start:
            self._num_here += 1
            if self._num_here > SETTLED_AFTER_STEPS:
                for name, value in finite.items():
                    if len(self._settled[name]) < WINDOW_STEPS:
                        self._settled[name].append(value)
            if not self._has_saved and "checkpoint_seconds" in numbers:
                # The trainer keeps the memory that it copied its first checkpoint into: it settles again.
                self._has_saved = True
                self._num_here = min(self._num_here, SETTLED_AFTER_STEPS)
                self._settled.clear()

    def evaluated(self, row: Mapping[str, Any]) -> None:
        accuracy = _number(row.get("greedy_accuracy"))
        if accuracy is None or math.isnan(accuracy):
            return
        low, high = _number(row.get("greedy_low")), _number(row.get("greedy_high"))
        half = 0.0 if low is None or high is None else (high - low) / 2
        step = int(row["step"])
        while self.evaluations and self.evaluations[-1].step >= step:
            self.evaluations.pop()
        before = [numbers for at, numbers in self.rows if at <= step][-WINDOW_STEPS:]
        self.evaluations.append(Evaluated(step, accuracy, half, _mean(before, "correct_mean")))

    def last(self, name: str) -> float | None:
        """Value at the last step; NaN where it was measured and is not finite."""
        return self.rows[-1][1].get(name) if self.rows else None

    def text(self, name: str) -> str:
        """The text of a column of the last step; empty where it has none."""
        return self._texts.get(name, "")

    def now(self, name: str) -> float | None:
        """Mean of the last WINDOW_STEPS steps; None while most of them do not know it."""
        return _mean([numbers for _, numbers in self._end()], name)

    def total(self, name: str) -> float:
        """Sum over the last WINDOW_STEPS steps."""
        known = [numbers.get(name, 0.0) for _, numbers in self._end()]
        return sum(value for value in known if math.isfinite(value))

    def before(self, name: str) -> float | None:
        """`now`, LOOK_BACK_STEPS earlier, or as early as there are twice as many steps as in a mean."""
        end = max(WINDOW_STEPS, len(self.rows) - LOOK_BACK_STEPS)
        if len(self.rows) < 2 * WINDOW_STEPS:
            return None
        return _mean([numbers for _, numbers in list(self.rows)[end - WINDOW_STEPS : end]], name)

    def first(self, name: str) -> float | None:
        """Mean of the run's first WINDOW_STEPS steps; None until they are over."""
        return _mean(self._first, name) if len(self._first) == WINDOW_STEPS else None

    def latest(self, name: str) -> float | None:
        """Mean of the last WINDOW_STEPS values, however far apart: of a column that few steps have."""
        return statistics.fmean(self._known[name]) if self._known[name] else None

    def settled(self, name: str) -> float | None:
        """Mean of the first WINDOW_STEPS values of this start after SETTLED_AFTER_STEPS and its first
        checkpoint, if there is one; None until they are known."""
        found = self._settled[name]
        return statistics.fmean(found) if len(found) == WINDOW_STEPS else None

    def steps_back(self) -> int:
        """Number of steps between what `now` and `before` are means of."""
        return min(LOOK_BACK_STEPS, max(0, len(self.rows) - WINDOW_STEPS))

    def of_trained_steps(self, name: str) -> list[float]:
        """The finite values of the last LOOK_BACK_STEPS steps; none until the policy has trained in each of
        these steps, or where most of them have no value."""
        rows = [numbers for _, numbers in list(self.rows)[-LOOK_BACK_STEPS:]]
        if len(rows) < LOOK_BACK_STEPS or not all(numbers.get("learning_rate") for numbers in rows):
            return []
        found = [value for numbers in rows if math.isfinite(value := numbers.get(name, NaN))]
        return found if 2 * len(found) > len(rows) else []

    def _end(self) -> list[tuple[int, dict[str, float]]]:
        return list(self.rows)[-WINDOW_STEPS:]


def _mean(rows: list[dict[str, float]], name: str) -> float | None:
    """None where fewer than three rows, and fewer than half of WINDOW_STEPS, know it."""
    known = [row[name] for row in rows if name in row and math.isfinite(row[name])]
    return statistics.fmean(known) if 2 * len(known) > WINDOW_STEPS else None


def _number(value: Any) -> float | None:
    """NaN for null, which metrics.jsonl has for what is not finite; None for what is no number."""
    if value is None:
        return NaN
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


NO_CORRECT = ("no_correct", "alarms.no_correct_steps", "groups")
"""Name, key and view of the alarm that begins in no_correct.py, which has the responses."""
DOCUMENTED = "docs/alarms.md"


class Finding(NamedTuple):
    """The evidence, while an alarm's condition holds."""

    value: float
    limit: float
    text: str
    """One sentence without a full stop: what moved, from where to where."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One alarm with its limits. A missing column finds nothing."""

    name: str
    find: Callable[..., Finding | None]
    """(history, each limit) -> the evidence. One of several limits may be None: it is off."""
    keys: tuple[str, ...]
    """Keys of the recipe's section `alarms`, one for each limit."""
    view: str
    """The tab of the page that shows the evidence."""
    limits: tuple[float | None, ...]

    def check(self, history: History) -> Finding | None:
        return self.find(history, *self.limits)

    def alarm(self, step: int, finding: Finding | None) -> "Alarm":
        return Alarm(self.name, ", ".join(f"alarms.{key}" for key in self.keys), self.view, step, finding)


@dataclass(frozen=True, slots=True)
class Alarm:
    """Begins with a finding, or has ended with none."""

    name: str
    key: str
    """The recipe keys of its limits."""
    view: str
    step: int
    finding: Finding | None

    @property
    def is_on(self) -> bool:
        return self.finding is not None

    def words(self) -> str:
        """For people: the evidence, the limit and where both are explained."""
        finding = self.finding
        if finding is None:
            return f"alarm {self.name} is over"
        return (
            f"alarm {self.name}: {finding.text}; limit {finding.limit:.4g} ({self.key}). See {DOCUMENTED}; "
            f"`asyncrl view` shows it at #/RUN/{self.view}."
        )
