"""The story of a chain as tables, lines and files: what each stage brought and cost; and the folder that a
user named. Files (report.html, report.json, report.md) are replaced whole.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.text import Text

from asyncrl.errors import InputError
from asyncrl.observe.metrics.charts import BLUE, MUTED
from asyncrl.observe.metrics.estimates import Difference
from asyncrl.observe.terminal.table import (
    NOTHING,
    Table,
    compact,
    duration,
    exact_share,
    in_points,
    percent_with_interval,
    printable,
)
from asyncrl.readers.chain.story import ChainStory, StageStory, read_story
from asyncrl.readers.report.pictures import GRID, as_svg, drawn
from asyncrl.readers.report.tables import as_markdown
from asyncrl.readers.report.write import DEFAULT_FORMATS, FORMATS, render_page, themed
from asyncrl.readers.status import STYLES
from asyncrl.recipe.chain import read_chain
from asyncrl.recipe.file import shown
from asyncrl.recipe.shipped import is_named
from asyncrl.run.chain import CHAIN, SELECTION
from asyncrl.run.metrics_file import Row
from asyncrl.system.files import write_whole
from asyncrl.system.places import REPORT
from asyncrl.system.words import as_percent


def chain_folder(path: Path) -> Path | None:
    """None for what is no chain. Raises InputError for a file that is no chain, and for one of a chain that
    has not begun."""
    if (path / CHAIN).is_file():
        return path
    if not path.is_file() and not is_named(path, "chain"):
        return None
    folder = Path(read_chain(path).folder)
    if not (folder / CHAIN).is_file():
        raise InputError(
            f"The chain {path} has not begun: {shown(folder)} has no {CHAIN}. Begin it: asyncrl chain {path}."
        )
    return folder


ARROW = " -> "


def tables_of(story: ChainStory) -> list[Table]:
    """Those that have a row."""
    return [table for table in (stages(story), *brought(story), cost(story)) if table.rows]


def stages(story: ChainStory) -> Table:
    """Models: what each stage began with and ended with."""
    rows = [
        (
            f"{stage.number} {stage.name}",
            stage.kind,
            state_words(stage),
            stage.began_with or NOTHING,
            _made(stage),
        )
        for stage in story.stages
    ]
    return Table("Stages", ("", "stage", "state", "began with", "made"), rows)


def state_words(stage: StageStory) -> str:
    is_done = stage.state == "finished" or stage.steps is None or not stage.num_steps
    return stage.state if is_done else f"{stage.state}, step {stage.steps} of {stage.num_steps}"


def _made(stage: StageStory) -> str:
    if stage.selected is None:
        return stage.ended_with or NOTHING
    found = stage.selected
    return f"{found.lines:,} lines of {found.rows:,} of {found.rows_seen:,} rows"


def brought(story: ChainStory) -> list[Table]:
    """Held-out results before and after each stage that has any: of the likeliest answers, and of samples."""
    measured = [
        stage for stage in story.stages if stage.after is not None or stage.heldout_loss_after is not None
    ]
    rows = [row for stage in measured for row in (stage.before, stage.after) if row is not None]
    k = next((row["k"] for row in rows if row.get("k") is not None), "k")
    note = (
        "Before the stage -> after it, on held-out tasks, with 95% intervals over tasks (Wilson). Changes in "
        "points, paired over tasks."
    )
    likely = _used(("", "greedy accuracy", "change", "tokens", "loss"), [_likely(each) for each in measured])
    sampled = _used(("", f"avg@{k}", "change", f"pass@{k}"), [_sampled(stage) for stage in measured])
    titles = ("What each stage brought", "Samples before and after each stage")
    found = zip(titles, (likely, sampled), strict=True)
    return [Table(title, header, lines, note) for title, (header, lines) in found if len(header) > 1]


def _used(header: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The columns in which a row has anything."""
    used = [index for index in range(len(header)) if not index or any(row[index] != NOTHING for row in rows)]
    return [header[index] for index in used], [[row[index] for index in used] for row in rows]


def _likely(stage: StageStory) -> tuple[str, ...]:
    ends = (stage.before, stage.after)
    lengths = [None if row is None else row.get("response_tokens_mean") for row in ends]
    losses = (stage.heldout_loss_before, stage.heldout_loss_after)
    return (
        f"{stage.number} {stage.name}",
        _pair(*(share(row, "greedy_accuracy", "greedy") for row in ends)),
        change(stage.changes.get("greedy")),
        _pair(*map(compact, lengths)),
        _pair(*(NOTHING if loss is None else f"{loss:.3f}" for loss in losses)),
    )


def _sampled(stage: StageStory) -> tuple[str, ...]:
    ends = (stage.before, stage.after)
    return (
        f"{stage.number} {stage.name}",
        _pair(*(share(row, "avg_at_k", "avg") for row in ends)),
        change(stage.changes.get("avg")),
        _pair(*(share(row, "pass_at_k", "pass") for row in ends)),
    )


def share(row: Row | None, value: str, name: str) -> str:
    found = row or {}
    return exact_share(found.get(value), found.get(f"{name}_low"), found.get(f"{name}_high"))


def _pair(before: str, after: str) -> str:
    return NOTHING if before == after == NOTHING else f"{before}{ARROW}{after}"


def change(found: Difference | None) -> str:
    return NOTHING if found is None else in_points(found.mean, found.low, found.high)


def cost(story: ChainStory) -> Table:
    """Cost of each stage, and of all that have begun."""
    begun = [stage for stage in story.stages if stage.wall_seconds is not None]
    rows = [(f"{stage.number} {stage.name}", *_costs([stage])) for stage in begun]
    if len(begun) > 1:
        rows.append(("all", *_costs(begun)))
    note = "Over all starts. Tokens generated: sampled by servers for the stage, without evaluations."
    header = ("", "steps", "wall time", "CPU time", "tokens generated", "tokens trained")
    return Table("What each stage cost", header, rows, note)


def _costs(begun: list[StageStory]) -> tuple[str, ...]:
    hours = [stage.cpu_hours for stage in begun]
    seconds = None if None in hours else 3600.0 * sum(hour or 0.0 for hour in hours)
    return (
        _count([stage.steps for stage in begun]),
        duration(sum(stage.wall_seconds or 0.0 for stage in begun)),
        duration(seconds),
        _count([stage.tokens_generated for stage in begun]),
        _count([stage.tokens_trained for stage in begun]),
    )


def _count(numbers: list[int | None]) -> str:
    known = [number for number in numbers if number is not None]
    total = sum(known)
    return NOTHING if not known else f"{total}" if total < 1000 else compact(total)


def chain_lines(story: ChainStory) -> list[Text]:
    """The chain, then a line for each stage."""
    done = sum(stage.state == "finished" for stage in story.stages)
    head = Text(printable(story.folder), style="bold")
    state = Text.assemble(
        ("chain     ", "dim"),
        (story.state, STYLES.get(story.state, "")),
        f", {done} of {len(story.stages)} stages done",
    )
    lines = [
        Text.assemble(
            (f"{stage.number:<10}", "dim"),
            f"{printable(stage.name)} ({stage.kind}): ",
            (state_words(stage), STYLES.get(stage.state, "")),
            *(f"; {words}" for words in _facts(stage)),
        )
        for stage in story.stages
    ]
    return [head, state, *lines]


def _facts(stage: StageStory) -> Iterator[str]:
    if stage.cause is not None:
        yield printable(stage.cause.splitlines()[0])
    if stage.selected is not None:
        yield _made(stage)
    if stage.after is not None and stage.after.get("greedy_accuracy") is not None:
        before = "" if stage.before is None else f"{_accuracy(stage.before)} -> "
        yield f"held-out {before}{_accuracy(stage.after)}"
    if stage.wall_seconds is not None:
        yield duration(stage.wall_seconds)


def _accuracy(row: Row) -> str:
    return percent_with_interval(row.get("greedy_accuracy"), row.get("greedy_low"), row.get("greedy_high"))


def draw_accuracy(stages: Sequence[StageStory]) -> str:
    """Empty where no stage evaluated. A selection has no width; a stage that only began has one step's."""
    if not any(stage.curve for stage in stages):
        return ""
    with drawn(11, 3.4, layout="constrained") as figure:
        axis = figure.subplots()
        begin, ticks = 0, []
        for stage in stages:
            end = begin + max(stage.steps or 0, 1 if stage.curve else 0)
            title = f"{stage.number} {stage.name}"
            if end > begin:
                axis.axvspan(begin, end, color=GRID, alpha=0.0 if stage.number % 2 else 0.5, linewidth=0)
                axis.text((begin + end) / 2, 1.1, title, ha="center", color=MUTED)
                ticks += [(begin, "0"), (end, str(stage.steps))]
            elif stage.selected is not None:
                axis.axvline(begin, color=MUTED, linestyle=":", linewidth=1)
            if stage.curve:
                steps = [begin + point[0] for point in stage.curve]
                axis.plot(steps, [point[1] for point in stage.curve], color=BLUE, linewidth=2, marker="o")
                low, high = ([point[side] for point in stage.curve] for side in (2, 3))
                axis.fill_between(steps, low, high, color=BLUE, alpha=0.18, linewidth=0)
            begin = end
        axis.set_ylim(0, 1.05)
        axis.margins(x=0.015)
        axis.yaxis.set_major_formatter(lambda value, _: as_percent(value))
        axis.set_xlabel("optimizer step of each stage")
        # Where a stage ends and the next begins, the end's number is shown.
        shown = dict(sorted(ticks, key=lambda tick: tick[1] != "0"))
        axis.set_xticks(list(shown), list(shown.values()))
        return as_svg(figure)


WRITTEN = ("html", "json", "markdown")
"""Formats that a chain has, of those of a run."""


def write_story(
    chain: Path, *, folder: Path | None = None, formats: Sequence[str] = DEFAULT_FORMATS
) -> list[Path]:
    """The files that were written into the chain's folder, or into `folder`; at any time, also while it runs.

    Raises InputError for files that are damaged, OSError for those that cannot be written.
    """
    story = read_story(chain)
    place = folder or chain
    place.mkdir(parents=True, exist_ok=True)
    texts: dict[str, Callable[[], str]] = {
        "html": lambda: render(story, place),
        "json": lambda: story.model_dump_json(indent=1) + "\n",
        "markdown": lambda: as_markdown(story.name, story.remarks, tables_of(story)),
    }
    files = {name: place / FORMATS[name] for name in formats if name in WRITTEN}
    for name, file in files.items():
        write_whole(file, texts[name]())
    return list(files.values())


def render(story: ChainStory, place: Path) -> str:
    """The page, for the folder `place`: links to the reports of runs are relative to it."""
    return render_page(
        "chain/chain.html",
        title=story.name,
        number=len(story.stages),
        state=story.state,
        remarks=story.remarks,
        tables=tables_of(story),
        picture=themed(draw_accuracy(story.stages)),
        places=[
            (f"{stage.number} {stage.name}", _link(stage, place), _command(stage)) for stage in story.stages
        ],
        file=shlex.quote(str(shown(Path(story.file)))),
    )


def _link(stage: StageStory, place: Path) -> str | None:
    """The report of a stage's run, where there is one."""
    report = Path(stage.place) / REPORT
    return os.path.relpath(report, place.absolute()) if report.is_file() else None


def _command(stage: StageStory) -> str:
    path = shlex.quote(str(shown(Path(stage.place))))
    return f"head -n 3 {path}" if stage.kind == SELECTION else f"asyncrl view {path}"
