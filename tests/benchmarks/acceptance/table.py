"""The table of the acceptance: Markdown, to be pasted into a report."""

from collections.abc import Mapping, Sequence

from tests.benchmarks.acceptance.checks import FAIL, NOT_RUN, PASS, Row


def table(rows: Sequence[tuple[str, Row]]) -> list[str]:
    """Lines; `rows` are (part, row)."""
    lines = ["| part | what | verdict | figure | what to do |", "|---|---|---|---|---|"]
    for part, row in rows:
        verdict = row.verdict if row.verdict == PASS else f"**{row.verdict}**"
        cells = (part, row.what, verdict, row.figure, row.advice)
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return lines


def summary(rows: Sequence[tuple[str, Row]], seconds: float) -> str:
    counts = {verdict: sum(row.verdict == verdict for _, row in rows) for verdict in (PASS, FAIL, NOT_RUN)}
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return f"{words} in {seconds / 60:.1f} minutes"


def page(
    machine: Mapping[str, str], rows: Sequence[tuple[str, Row]], details: Mapping[str, str], seconds: float
) -> str:
    """The whole report; `details` are last lines of the logs of parts that failed."""
    lines = ["# GPU check", "", f"**{summary(rows, seconds)}**", ""]
    lines += [f"- {name}: {value}" for name, value in machine.items()]
    lines += ["", *table(rows), ""]
    for part, words in details.items():
        lines += [f"## {part}: the end of its log", "", "```", words, "```", ""]
    return "\n".join(lines)
