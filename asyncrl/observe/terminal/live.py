"""One aligned line per step, as wide as the terminal allows; 80 columns are enough.

The width decides which columns appear, by rank; when the window changes, the next line has a new header.
Without a terminal the lines have no colors, and remarks are one line each. Only prints; the numbers are the
controller's.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from asyncrl.observe.terminal.table import (
    NOTHING,
    compact,
    duration,
    has_terminal,
    hundredths,
    percent,
    percent_with_interval,
    printable,
    sparkline,
    tiny_bar,
)
from asyncrl.recipe import Alarms
from asyncrl.run.metrics_file import Row
from asyncrl.system.words import fixed

HEADER_EVERY_LINES = 20
ETA_WINDOW_STEPS = 20
BAR_WIDTH = 4
SPARK_WIDTH = 16

IDLE_SHARE_TO_NOTICE = 0.10
"""Above this the number turns yellow: the project's own goal. The others turn at the limits of alarms."""

_DROPS = (
    ("fault", "by faults"),
    ("server", "by servers that failed"),
    ("stale", "too stale"),
    ("no_signal", "without a signal"),
)
_KINDS = (("all_wrong", "all wrong"), ("all_right", "all right"))


@dataclass(slots=True)
class _State:
    """State that a line shows in addition to its row."""

    total_steps: int
    is_unicode: bool
    limits: Alarms
    rewards: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    evaluation: Row | None = None
    is_evaluation_fresh: bool = False

    def limit(self, column: str) -> float | None:
        """That of the alarm of the same name: a number above it turns yellow."""
        found: float | None = getattr(self.limits, column, None)
        return found


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    unit: str
    width: int
    rank: int
    """1 is kept longest when the terminal is narrow."""
    cell: Callable[[Row, _State], tuple[str, str]]
    """Text and rich style."""


class LiveLine:
    """Prints a line per step, and the header every HEADER_EVERY_LINES. Not thread-safe."""

    def __init__(
        self,
        total_steps: int,
        *,
        limits: Alarms | None = None,
        console: Console | None = None,
        has_rewards: bool = True,
    ) -> None:
        """A number above its limit turns yellow, even in a single step; default: the default limits. Without
        `has_rewards` the line is that of a stage that learns rows."""
        self._console = console or Console(highlight=False)
        is_unicode = self._console.encoding.lower().startswith("utf")
        self._state = _State(total_steps, is_unicode, limits or Alarms())
        self._all_columns = _columns(total_steps) if has_rewards else _of_rows(total_steps)
        self._shown = frozenset[str]()
        self._columns: list[_Column] = []
        self._width = 0
        self._lines_since_header = HEADER_EVERY_LINES

    def step(self, row: Row) -> None:
        """Prints the line of a step; a missing field shows as a dash."""
        state = self._state
        state.rewards.append(row.get("reward_mean") or 0.0)
        if row.get("step_seconds") is not None:
            state.step_seconds.append(row["step_seconds"])
        shown = self._shown.union(row.keys() & _OPTIONAL)
        if shown != self._shown:
            self._shown, self._lines_since_header = shown, HEADER_EVERY_LINES
            self._all_columns = _columns(state.total_steps, shown, has_rewards="reward_mean" in row)
        if self._lines_since_header >= HEADER_EVERY_LINES or self._console.width != self._width:
            self._print_header()
        self._lines_since_header += 1
        line = Text()
        for column in self._columns:
            text, style = column.cell(row, state)
            line.append(text.rjust(column.width), style=style)
            line.append(" ")
        self._print(line)
        state.is_evaluation_fresh = False

    def evaluation(self, row: Row) -> None:
        """Shows a held-out evaluation in the next lines; before and after training, prints it as well."""
        self._state.evaluation = row
        self._state.is_evaluation_fresh = True
        if row["when"] == "during":
            return
        self._print_shares(f"held-out {row['when']} training:", row)

    def benchmark(self, row: Row) -> None:
        """Prints what a benchmark says of the model before or after training."""
        self._print_shares(f"{row['benchmark']} {row['when']} training:", row)

    def dropped(self, row: Row) -> None:
        """Prints what was dropped while a step waits for its batch."""
        kinds = ", ".join(f"{row[name]:,} {title}" for name, title in _KINDS if row[name])
        found = [f"{row[name]:,} {title}" for name, title in _DROPS if row[name]]
        self.note(
            f"step {row['step']} waits for its batch: {row['num_dropped']:,} groups dropped since the last, "
            f"{', '.join(found)}" + (f" ({kinds})" if kinds else "")
        )

    def note(self, text: str, *, style: str = "yellow") -> None:
        """Prints a remark between the lines, such as a server that left."""
        self._print_words(Text(printable(text), style=style))

    def _print_shares(self, title: str, row: Row) -> None:
        line, separator = Text(title), " "
        if row.get("greedy_accuracy") is not None:
            line.append(" greedy ")
            line.append(_percent_and_interval(row, "greedy_accuracy", "greedy"), style="bold cyan")
            separator = ", "
        if row.get("k") is not None:
            line.append(f"{separator}avg@{row['k']} " + _percent_and_interval(row, "avg_at_k", "avg"))
            line.append(f", pass@{row['k']} " + _percent_and_interval(row, "pass_at_k", "pass"))
        self._print_words(line)

    def _print_header(self) -> None:
        self._lines_since_header = 0
        self._width = self._console.width
        self._columns = _fitting(self._all_columns, self._width)
        for words in ([c.title for c in self._columns], [c.unit for c in self._columns]):
            cells = [word.rjust(c.width) for word, c in zip(words, self._columns, strict=True)]
            self._print(Text(" ".join(cells), style="dim"))

    def _print(self, line: Text) -> None:
        line.rstrip()
        self._console.print(line, soft_wrap=True)

    def _print_words(self, text: Text) -> None:
        """Prints `text`: on a terminal wrapped between words, in a file as one line, for grep."""
        text.rstrip()
        self._console.print(text, soft_wrap=not has_terminal(self._console))


def _fitting(columns: list[_Column], width: int) -> list[_Column]:
    """The columns that fit, chosen by rank, in their order on the line."""
    kept: list[_Column] = []
    for column in sorted(columns, key=lambda column: column.rank):
        if sum(c.width + 1 for c in kept) + column.width <= width:
            kept.append(column)
    return [column for column in columns if column in kept]


_OPTIONAL = frozenset({"tool_use_share", "teacher_kl"})
"""Keys of rows that bring a column of their own: where trajectories have turns, or a teacher."""


def _columns(
    total_steps: int, optional: Set[str] = frozenset(), *, has_rewards: bool = True
) -> list[_Column]:
    """`optional`: those of _OPTIONAL that rows have."""
    step_width = max(5, 2 * len(str(total_steps)) + 1)
    rewards = [
        _Column("reward", "", 5 + BAR_WIDTH, 2, _reward),
        _Column("trend", "", SPARK_WIDTH, 16, _trend),
    ]
    return [
        _Column("step", "", step_width, 1, lambda row, state: (f"{row['step']}/{state.total_steps}", "bold")),
        *(rewards if has_rewards else []),
        *([_Column("teach", "KL", 6, 2, _teacher)] if "teacher_kl" in optional else []),
        _Column("held-out", "95% CI", 11, 3, _heldout),
        _Column("len", "tok", 5, 4, _compact("response_tokens_mean")),
        _Column("cut", "%", 3, 11, _whole_percent("cut_share")),
        *(
            [_Column("tool", "%", 4, 12, _whole_percent("tool_use_share"))]
            if "tool_use_share" in optional
            else []
        ),
        _Column("stale", "av/mx", 5, 5, _staleness),
        _Column("roll", "tok/s", 5, 6, _compact("rollout_tokens_per_second")),
        _Column("train", "tok/s", 5, 7, _compact("tokens_per_second")),
        _Column("mism", "KL", 5, 10, _mismatch),
        _Column("capd", "%", 4, 14, _percent("capped_share")),
        _Column("mask", "%", 4, 15, _percent("left_out_share")),
        _Column("idle%", "tr/ro", 5, 9, _idle),
        _Column("zero", "grps", 5, 17, lambda row, _: (_plain(row.get("groups_zero_signal")), "")),
        _Column("entr", "nats", 5, 18, _compact("entropy")),
        _Column("grad", "norm", 5, 19, _compact("grad_norm")),
        _Column("lr", "", 6, 20, lambda row, _: (_rate(row.get("learning_rate")), "")),
        _Column("s/st", "", 5, 13, _compact("step_seconds")),
        _Column("left", "", 7 if total_steps > 1000 else 5, 8, _left),
    ]


def _of_rows(total_steps: int) -> list[_Column]:
    """Where rows are learned."""
    by_title = {column.title: column for column in _columns(total_steps)}
    kept = [by_title[title] for title in ("len", "train", "grad", "entr", "lr", "s/st", "left")]
    return [
        by_title["step"],
        _Column("loss", "", 7, 2, lambda row, _: (_decimals(row.get("loss")), "green")),
        _Column("held-out", "loss", 8, 3, _heldout_loss),
        _Column("ppl", "", 7, 4, lambda row, _: (_decimals(row.get("heldout_perplexity")), "")),
        # Of answers, where servers give some.
        _Column("right", "95% CI", 11, 12, _heldout),
        *kept,
    ]


def _heldout_loss(row: Row, _: _State) -> tuple[str, str]:
    return _decimals(row.get("heldout_loss", row.get("heldout_loss_at_start"))), "bold cyan"


def _decimals(value: float | None) -> str:
    """Four significant digits."""
    return NOTHING if value is None else f"{value:.4g}"


def _reward(row: Row, state: _State) -> tuple[str, str]:
    reward = row.get("reward_mean")
    if reward is None:
        return NOTHING, ""
    # The bar is the share of correct responses: a shaped reward may leave [0, 1].
    correct = row.get("correct_mean")
    bar = tiny_bar(reward if correct is None else correct, width=BAR_WIDTH, is_unicode=state.is_unicode)
    return f"{hundredths(reward)} {bar}", "green"


def _trend(row: Row, state: _State) -> tuple[str, str]:
    return (sparkline(state.rewards, width=SPARK_WIDTH) if state.is_unicode else ""), "green"


def _heldout(row: Row, state: _State) -> tuple[str, str]:
    """Accuracy with its interval on the first line after the evaluation, without it on later ones."""
    if state.evaluation is None:
        return NOTHING, "dim"
    if state.is_evaluation_fresh:
        text, style = _percent_and_interval(state.evaluation, "greedy_accuracy", "greedy"), "bold cyan"
    else:
        text, style = percent(state.evaluation.get("greedy_accuracy")), "dim cyan"
    value, _, interval = text.partition(" ")
    return f"{value:>4} {interval:<6}", style


def _whole_percent(column: str) -> Callable[[Row, _State], tuple[str, str]]:
    return lambda row, state: _share(row.get(column), state.limit(column), most_digits=0)


def _percent(column: str) -> Callable[[Row, _State], tuple[str, str]]:
    return lambda row, state: _share(row.get(column), state.limit(column), most_digits=1)


def _share(share: float | None, limit: float | None, *, most_digits: int) -> tuple[str, str]:
    """A percentage, with at most this many digits after the point."""
    if share is None:
        return NOTHING, ""
    return fixed(100 * share, most_digits if share < 0.0995 else 0), _noticed(share, limit)


def _compact(column: str) -> Callable[[Row, _State], tuple[str, str]]:
    return lambda row, _: (compact(row.get(column)), "")


def _teacher(row: Row, _: _State) -> tuple[str, str]:
    """Reverse KL per token to the teacher."""
    value = row.get("teacher_kl")
    return (NOTHING if value is None else f"{value:.3f}"), "green"


def _staleness(row: Row, _: _State) -> tuple[str, str]:
    mean, most = row.get("staleness_mean"), row.get("staleness_max")
    return (NOTHING if mean is None or most is None else f"{mean:.1f}/{most:.0f}"), ""


def _mismatch(row: Row, state: _State) -> tuple[str, str]:
    kl = row.get("mismatch_kl")
    if kl is None:
        return NOTHING, ""
    return f"{kl:.0e}", _noticed(abs(kl), state.limit("mismatch_kl"))


def _idle(row: Row, _: _State) -> tuple[str, str]:
    trainer, rollout = row.get("trainer_idle_share"), row.get("rollout_idle_share")
    if trainer is None or rollout is None:
        return NOTHING, ""
    # Only one side can be the bottleneck: the busier one should hardly wait.
    return f"{fixed(100 * trainer)}/{fixed(100 * rollout)}", _noticed(
        min(trainer, rollout), IDLE_SHARE_TO_NOTICE
    )


def _left(row: Row, state: _State) -> tuple[str, str]:
    recent = state.step_seconds[-ETA_WINDOW_STEPS:]
    if not recent:
        return NOTHING, ""
    steps_left = max(0, state.total_steps - row["step"])
    return duration(steps_left * sum(recent) / len(recent)), ""


def _noticed(value: float | None, limit: float | None) -> str:
    return "yellow" if value is not None and limit is not None and value > limit else ""


def _rate(value: float | None) -> str:
    """A learning rate in at most six characters, such as 3.3e-7."""
    return NOTHING if value is None else f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e")


def _plain(value: Any) -> str:
    return NOTHING if value is None else str(value)


def _percent_and_interval(row: Row, value: str, bounds: str) -> str:
    return percent_with_interval(row.get(value), row.get(f"{bounds}_low"), row.get(f"{bounds}_high"))
