"""Findings of an audit on a terminal."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from asyncrl.observe.metrics.formats import NOTHING
from asyncrl.observe.terminal.live import printable
from asyncrl.observe.terminal.table import Table, print_table
from asyncrl.readers.audit.findings import (
    KINDS,
    OTHER_FAULT,
    RECORDED_FAULT,
    Example,
    Findings,
    Part,
    Rate,
    Told,
)
from asyncrl.system.words import as_percent

METHOD = (
    "95% intervals, tasks as the unit. Undeserved: rewarded, but wrong by the other; refused: the reverse. "
    "Right and wrong are the other verifier's: read the examples before you believe either."
)


def print_findings(found: Findings, run: str, console: Console) -> None:
    """Samples, rates, rates by steps, and one example of each kind of disagreement."""
    for line in _head(found):
        _say(console, line)
    rows = [("all", f"{found['num_graded']:,}", *_row(found))]
    if len(found["parts"]) > 1:
        rows += [
            (f"steps {part['first_step']}-{part['last_step']}", f"{part['num_graded']:,}", *_row(part))
            for part in found["parts"]
        ]
    header = (
        "responses",
        "graded",
        "undeserved",
        "of rewarded",
        "95%",
        "of all",
        "95%",
        "refused",
        "of the rest",
        "95%",
    )
    console.print()
    print_table(Table("", header, rows), console)
    if found["change"]:
        _say(console, found["change"])
    for kind, example in found["examples"].items():
        console.print()
        for line in _example(kind, example, run):
            _say(console, line)
    console.print()
    _say(console, METHOD, style="dim")


def _head(found: Findings) -> Iterator[str]:
    yield (
        f"{found['num_graded']:,} of {found['num_drawn']:,} drawn responses graded again, of "
        f"{found['num_trained']:,} trained. Recorded by {', '.join(found['recorded_verifiers'])}, again by "
        f"{', '.join(found['other_verifiers'])}."
    )
    for count, why in (
        (found["num_compacted"], "compacted responses are left out: their texts are no longer kept"),
        (found["num_without_gold"], "responses are left out: --tests has no gold for their tasks"),
        (found["num_without_row"], "drawn responses are left out: no row of data.train has their task"),
        (found["kinds"][RECORDED_FAULT], "faults in the journal, in no rate"),
        (found["kinds"][OTHER_FAULT], "faults of the other verifier, in no rate"),
    ):
        if count:
            yield f"{count:,} {why}."
    unreadable = found["unreadable_golds"]
    if unreadable["num_tasks"]:
        yield (
            f"{unreadable['num_responses']:,} drawn responses are left out: the other verifier cannot read "
            f"the golds of {unreadable['num_tasks']:,} tasks:"
        )
        for task_id, why in unreadable["first"].items():
            yield f"  {task_id}: {why}"


def _row(found: Findings | Part) -> tuple[str, ...]:
    _, *of_all = _cells(found["undeserved_of_all"])
    return (*_cells(found["undeserved"]), *of_all, *_cells(found["refused"]))


def _cells(rate: Rate) -> tuple[str, str, str]:
    if rate["share"] is None or rate["low"] is None or rate["high"] is None:
        return "0 of 0", NOTHING, NOTHING
    interval = f"{as_percent(rate['low'], 1)} to {as_percent(rate['high'], 1)}"
    return f"{rate['count']:,} of {rate['of']:,}", as_percent(rate["share"], 1), interval


def _example(kind: str, example: Example, run: str) -> Iterator[str]:
    name = example["trajectory_id"]
    yield f"{kind} ({KINDS[kind]}): {name}, task {example['task_id']}, step {example['step']}"
    yield f"  prompt    {_on_one_line(example['prompt'])}"
    yield f"  response  {_on_one_line(example['response'])}"
    yield f"  recorded  {_verdict(example['recorded'])}"
    yield f"  other     {_verdict(example['other'])}"
    yield f"  whole     asyncrl journal {run} --trajectory {name}"


def _on_one_line(text: str) -> str:
    return text.replace("\n", "\\n")


def _verdict(told: Told) -> str:
    read = "" if told["extracted"] is None else f", read {told['extracted']!r}"
    return f"{told['outcome']}{read}{': ' if told['detail'] else ''}{_on_one_line(told['detail'])}"


def _say(console: Console, line: str, *, style: str = "") -> None:
    console.print(Text(printable(line), style=style), soft_wrap=True)
