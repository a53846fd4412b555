"""A run's folder to its `RunReport`: at any time, read only, also while the run writes.

What nothing recorded is null. Steps that a later start trained again count once; time counts as often as
it was spent. Raises InputError for files that are damaged.
"""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from asyncrl.journal.conservation import GENERATED, TRAINED, Conservation, read_conservation
from asyncrl.journal.reader import JournalReader, find_journal
from asyncrl.journal.responses import read_sampled
from asyncrl.journal.starts import RUN, Start, Usage, read_starts, read_usage, recorded_data, recorded_model
from asyncrl.model.flops import matrix_weights
from asyncrl.model.shape import ModelShape
from asyncrl.model.source import is_of_hub
from asyncrl.model.weights import num_parameters
from asyncrl.observe.metrics.mishaps import group_faults
from asyncrl.observe.terminal.model_differences import differences as differences_of_rows
from asyncrl.readers.report import schema
from asyncrl.readers.report.answers import (
    Measured,
    before_and_after,
    measured_before_and_after,
    read_measured,
    sampled_over_k,
)
from asyncrl.readers.report.costs import flops_of, is_number, step_responses, time_of
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import dump_recipe
from asyncrl.recipe.yaml_text import read_yaml
from asyncrl.run.folder import RunFolder, read_run_recipe
from asyncrl.run.metrics_file import Metrics, Row, flat, read_metrics
from asyncrl.run.status import is_running, read_status
from asyncrl.system.machine import Environment, differences
from asyncrl.system.places import JOURNAL, METRICS

OFF_POLICY = (
    *("staleness_mean", "staleness_max", "staleness_kl", "mismatch_kl", "mismatch_logprob_max"),
    *("mean_importance_ratio", "max_importance_ratio", "capped_share", "masked_share", "clipped_share"),
    *("continued_share", "policy_kl", "teacher_kl", "entropy"),
)
"""Columns of the steps whose distribution the report shows."""
NO_TOKENS = {GENERATED: 0, TRAINED: 0}


def collect(run_folder: Path, metrics: Metrics | None = None) -> schema.RunReport:
    """Everything that the folder says of its run; `metrics` are its rows, where they are read already.

    Raises InputError."""
    recipe = read_run_recipe(run_folder)
    metrics = metrics or read_metrics(run_folder / METRICS)
    journal = find_journal(run_folder / JOURNAL)
    starts = [] if journal is None else read_starts(journal)
    usage = {} if journal is None else read_usage(journal)
    last = starts[-1].record if starts else None
    shape = None if last is None else last.shape
    sampled = None if journal is None else read_sampled(journal)
    off_policy = {name: _numbers(metrics.steps, name) for name in OFF_POLICY}
    books = Conservation(tokens_of(journal), {} if journal is None else journal.fates())
    return schema.RunReport(
        written_seconds=round(time.time(), 3),
        run=_run(run_folder, recipe, metrics, has_journal=journal is not None),
        heldout=_heldout(metrics),
        benchmarks=_benchmarks(metrics),
        evaluations=[_evaluated(measured) for measured in read_measured(run_folder)],
        samples=None if journal is None else sampled_over_k(journal),
        answers=None if journal is None else before_and_after(journal),
        response_tokens=_ends(metrics.steps, "response_tokens_mean"),
        responses=step_responses(metrics.steps),
        cut_share=_ends(metrics.steps, "cut_share"),
        reward=_ends(metrics.steps, "reward_mean"),
        tokens=_tokens(books, metrics.steps, 0.0 if sampled is None else sampled.num_prompt_tokens),
        flops=flops_of(shape, sampled, metrics.steps),
        time=time_of(usage, metrics.steps),
        off_policy={name: distribution(values) for name, values in off_policy.items() if values},
        faults=[] if journal is None else group_faults(journal.faults(), journal.retried_faults()),
        starts=_starts(starts, usage),
        model=_model(recipe, None if journal is None else recorded_model(journal), shape),
        data={} if journal is None else recorded_data(journal),
        code={} if last is None else last.code,
        environment=None if last is None else last.environment,
        recipe=read_yaml(dump_recipe(recipe)),
    )


def tokens_of(journal: JournalReader | None) -> Mapping[str, int]:
    """The token fates of `read_conservation`; zero for a run that never began."""
    return NO_TOKENS if journal is None else read_conservation(journal.path)


def _run(run_folder: Path, recipe: Recipe, metrics: Metrics, *, has_journal: bool) -> schema.Run:
    steps = int(metrics.steps[-1]["step"]) if metrics.steps else 0
    status = read_status(run_folder)
    state: Literal["finished", "running", "stopped", "not begun"] = "stopped"
    if status is not None and is_running(status):
        state = "running"
    elif RunFolder(run_folder).end(recipe) is not None:
        state = "finished"
    elif not has_journal:
        state = "not begun"
    return schema.Run(
        name=recipe.name,
        folder=os.path.abspath(run_folder),
        state=state,
        steps=steps,
        num_steps=recipe.trainer.num_steps,
    )


def base_and_last(metrics: Metrics) -> tuple[Row | None, Row | None]:
    """The held-out evaluation before the first step, and the newest one after a step."""
    rows = [row for row in metrics.evaluations if is_number(row.get("num_tasks"))]
    base = next((row for row in rows if row["when"] == "before"), None)
    trained = [row for row in rows if row["step"] > 0]
    # The evaluation after training, of the same step, has samples too.
    return base, max(trained, key=lambda row: (row["step"], row["when"] == "after"), default=None)


def _heldout(metrics: Metrics) -> schema.HeldOut | None:
    rows = [row for row in metrics.evaluations if is_number(row.get("num_tasks"))]
    if not rows:
        return None
    base, last = base_and_last(metrics)
    trained = [row for row in rows if row["step"] > 0]
    known = [row for row in trained if is_number(row.get("greedy_accuracy"))]
    best = max(
        known, key=lambda row: (row["greedy_accuracy"], -row["step"], row["when"] == "after"), default=None
    )
    templates = [row.get("template") for row in rows]
    return schema.HeldOut(
        template=next((template for template in reversed(templates) if template), None),
        is_one_template=len(set(templates)) == 1,
        base=None if base is None else flat(base),
        last=None if last is None else flat(last),
        best=None if best is None else flat(best),
        num_candidates=len({row["step"] for row in trained}),
    )


def _benchmarks(metrics: Metrics) -> list[schema.Benchmark]:
    names = dict.fromkeys(row["benchmark"] for row in metrics.benchmarks)
    return [
        _benchmark(name, [row for row in metrics.benchmarks if row["benchmark"] == name]) for name in names
    ]


def _benchmark(name: str, rows: Sequence[Row]) -> schema.Benchmark:
    before, after = (next((row for row in rows if row["when"] == when), None) for when in ("before", "after"))
    during = sorted((row for row in rows if row["when"] == "during"), key=lambda row: row["step"])
    return schema.Benchmark(
        name=name,
        before=None if before is None else flat(before),
        after=None if after is None else flat(after),
        during=[flat(row) for row in during],
        changes={} if before is None or after is None else differences_of_rows(before, after),
    )


def _evaluated(measured: Measured) -> schema.Evaluated:
    compared = measured.compared
    return schema.Evaluated(
        name=measured.name,
        seconds=round(measured.seconds, 3),
        models=measured.models,
        results=measured.short_rows(),
        sampled=[] if compared is None else compared["models"],
        curves={} if compared is None else compared["curves"],
        contrasts={} if compared is None else compared["contrasts"],
        sentences=[] if compared is None else compared["sentences"],
        answers=measured_before_and_after(measured),
    )


def _ends(steps: Sequence[Row], name: str) -> schema.Ends:
    values = _numbers(steps, name)
    if not values:
        return schema.Ends(first=None, last=None, mean=None)
    return schema.Ends(first=values[0], last=values[-1], mean=statistics.fmean(values))


def _tokens(books: Conservation, steps: Sequence[Row], prompt_tokens: float) -> schema.Tokens:
    return schema.Tokens(
        generated=books.generated_tokens(),
        generated_groups=books.generated_groups(),
        trained=books.tokens.get(TRAINED, 0),
        in_loss=sum(map(int, _numbers(steps, "num_tokens"))),
        prompt=round(prompt_tokens),
        fates=books.fates(),
        unaccounted=books.missing_tokens(),
    )


def _numbers(steps: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in steps if is_number(row.get(name))]


def distribution(values: Sequence[float]) -> schema.Distribution:
    """A quantile is the smallest value that its share of the steps does not exceed."""
    median, p90, p99, largest = np.quantile(values, (0.5, 0.9, 0.99, 1.0), method="inverted_cdf").tolist()
    return schema.Distribution(
        num_steps=len(values), mean=statistics.fmean(values), median=median, p90=p90, p99=p99, max=largest
    )


def _starts(starts: Sequence[Start], usage: Mapping[float, Sequence[Usage]]) -> list[schema.Start]:
    first: Environment | None = starts[0].record.environment if starts else None
    return [
        schema.Start(
            started_seconds=start.started_seconds,
            version=start.version,
            wall_seconds=next(
                (use.wall_seconds for use in usage.get(start.started_seconds, ()) if use.name == RUN), None
            ),
            differences=[] if first is None else differences(first, start.record.environment),
        )
        for start in starts
    ]


def _model(recipe: Recipe, digest: str | None, shape: ModelShape | None) -> schema.Model:
    return schema.Model(
        path=recipe.model.path,
        commit=recipe.model.revision if is_of_hub(recipe.model) else None,
        digest=digest,
        architecture=None if shape is None else shape.architecture,
        num_parameters=None if shape is None else num_parameters(shape),
        matrix_weights=None if shape is None else matrix_weights(shape),
    )
