"""Responses over the steps, as the figures of DeepSeek-R1-Zero show them: length by correctness, and
reflection words. From the metrics of the steps, which stay when the journal's texts are compacted."""

import csv
import io
from collections.abc import Sequence

from asyncrl.observe.terminal.table import Table
from asyncrl.readers.report.costs import is_number
from asyncrl.readers.report.schema import RunReport, StepResponses
from asyncrl.run.metrics_file import Row

_BY_WORD = "reflection_words_mean_by_word_"
_COLUMNS = {
    "correct_tokens_mean": "response_tokens_mean_by_outcome_correct",
    "wrong_tokens_mean": "response_tokens_mean_by_outcome_wrong",
    "reflection_words_mean": "reflection_words_mean",
    "reflection_words_share": "reflection_words_share",
    "correct_reflection_words_mean": "reflection_words_mean_by_outcome_correct",
    "wrong_reflection_words_mean": "reflection_words_mean_by_outcome_wrong",
}
"""Field -> column of a step."""
_TITLES = {
    "correct_tokens_mean": "tokens, correct responses",
    "wrong_tokens_mean": "tokens, wrong responses",
    "reflection_words_mean": "reflection words per response",
    "reflection_words_share": "share of responses with one",
    "correct_reflection_words_mean": "reflection words, correct responses",
    "wrong_reflection_words_mean": "reflection words, wrong responses",
}


def step_responses(steps: Sequence[Row]) -> list[StepResponses]:
    """All steps, in order; what one did not measure is null."""
    return [
        StepResponses(
            step=int(row["step"]),
            **{field: _number(row, column) for field, column in _COLUMNS.items()},
            reflection_words_by_word={
                name.removeprefix(_BY_WORD): row[name]
                for name in row
                if name.startswith(_BY_WORD) and is_number(row[name])
            },
        )
        for row in steps
    ]


def responses_table(report: RunReport) -> Table:
    """First value, last value and mean over the steps."""
    rows = []
    for field, title in _TITLES.items():
        values = [value for each in report.responses if (value := getattr(each, field)) is not None]
        if values:
            mean = sum(values) / len(values)
            rows.append(
                (title, *(f"{value:.3g}" for value in (values[0], values[-1], mean)), str(len(values)))
            )
    words = report.recipe.get("view", {}).get("reflection_words") or []
    note = f"Steps are those that have a value, of {len(report.responses)}."
    if words:
        note += f" Reflection words (view.reflection_words): {', '.join(words)}."
    return Table("Responses", ("", "first step", "last step", "mean", "steps"), rows, note)


def responses_csv(report: RunReport) -> str:
    """A row per step; an empty value is one that the step did not measure."""
    words = list(dict.fromkeys(word for each in report.responses for word in each.reflection_words_by_word))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", *_COLUMNS, *(f"reflection_word: {word}" for word in words)])
    for each in report.responses:
        by_word = each.reflection_words_by_word
        values = [*(getattr(each, field) for field in _COLUMNS), *(by_word.get(word) for word in words)]
        table.writerow([each.step, *("" if value is None else value for value in values)])
    return text.getvalue()


def _number(row: Row, name: str) -> float | None:
    return row[name] if is_number(row.get(name)) else None
