"""The report of a chain as files in its folder: report.html, report.json, report.md, each replaced whole."""

import io
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl.observe.metrics.charts import BLUE, MUTED
from asyncrl.observe.terminal.curves import GRID, NO_METADATA, STYLE
from asyncrl.readers.chain.story import ChainStory, StageStory, read_story
from asyncrl.readers.chain.tables import tables_of
from asyncrl.readers.report.page import render_page, themed
from asyncrl.readers.report.tables import as_markdown
from asyncrl.readers.report.write import DEFAULT_FORMATS, FORMATS
from asyncrl.recipe.file import shown
from asyncrl.run.chain import SELECTION
from asyncrl.system.files import write_whole
from asyncrl.system.places import REPORT
from asyncrl.system.words import as_percent


def draw_accuracy(stages: Sequence[StageStory]) -> str:
    """Empty where no stage evaluated. A selection has no width; a stage that only began has one step's."""
    if not any(stage.curve for stage in stages):
        return ""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.4), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
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
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", metadata=NO_METADATA)
    document = svg.getvalue().decode()
    return document[document.index("<svg") :]


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
