"""Lines that `asyncrl status` prints of a chain."""

from collections.abc import Iterator

from rich.text import Text

from asyncrl.observe.metrics.formats import duration, percent_with_interval
from asyncrl.observe.terminal.live import printable
from asyncrl.readers.chain.story import ChainStory, StageStory
from asyncrl.readers.chain.tables import state_words
from asyncrl.readers.status.status_lines import STYLES
from asyncrl.run.metrics_file import Row


def chain_lines(story: ChainStory) -> list[Text]:
    """The chain, then a line for each stage."""
    done = sum(stage.state == "finished" for stage in story.stages)
    head = Text(printable(story.folder), style="bold")
    state = Text.assemble(
        ("chain     ", "dim"),
        (story.state, STYLES.get(story.state, "")),
        f", {done} of {len(story.stages)} stages done",
    )
    return [head, state, *(_line(stage) for stage in story.stages)]


def _line(stage: StageStory) -> Text:
    return Text.assemble(
        (f"{stage.number:<10}", "dim"),
        f"{printable(stage.name)} ({stage.kind}): ",
        (state_words(stage), STYLES.get(stage.state, "")),
        *(f"; {words}" for words in _facts(stage)),
    )


def _facts(stage: StageStory) -> Iterator[str]:
    if stage.cause is not None:
        yield printable(stage.cause.splitlines()[0])
    if stage.selected is not None:
        found = stage.selected
        yield f"{found.lines:,} lines of {found.rows:,} of {found.rows_seen:,} rows"
    if stage.after is not None and stage.after.get("greedy_accuracy") is not None:
        before = "" if stage.before is None else f"{_accuracy(stage.before)} -> "
        yield f"held-out {before}{_accuracy(stage.after)}"
    if stage.wall_seconds is not None:
        yield duration(stage.wall_seconds)


def _accuracy(row: Row) -> str:
    return percent_with_interval(row.get("greedy_accuracy"), row.get("greedy_low"), row.get("greedy_high"))
