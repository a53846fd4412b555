"""Costs and lengths of a run, from its folder: its steps' metrics, its journal.

A decode step costs a + b n seconds with n requests: servers sum their passes up, and least squares tell both.
All costs of servers are scaled at last until the simulated run has the measured seconds per token: the
calibration repeats the run that it is made from, and predicts others.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.journal.connection import is_begun
from asyncrl.journal.lengths import GroupLengths, read_lengths
from asyncrl.journal.reader import JournalReader
from asyncrl.observe.metrics.metrics_file import Row, read_metrics
from asyncrl.planning.lengths import Lengths
from asyncrl.planning.outcome import steady_range
from asyncrl.planning.settings import Costs, PlannedRun, training_tokens
from asyncrl.planning.simulation import simulate
from asyncrl.recipe import Recipe
from asyncrl.records import DropReason
from asyncrl.run.folder import read_run_recipe
from asyncrl.system.run_files import JOURNAL, METRICS

FEWEST_STEPS = 8
NUM_SCALINGS = 6
SHORT_GAPS = 0.8
"""Share of the gaps between two admissions that are the controller's own time."""
NEEDED = ("install_seconds", "num_packed_tokens", "train_seconds", "decode_passes")


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one run."""

    recipe: Recipe
    costs: Costs
    lengths: Lengths
    no_signal_share: float


def measure(run_folder: Path) -> Measured:
    """Raises InputError where the folder holds no run, or one too short to measure."""
    recipe = read_run_recipe(run_folder)
    rows = read_metrics(run_folder / METRICS).steps
    if not _is_enough(rows):
        raise InputError(
            f"{run_folder} holds {len(rows)} steps; a calibration needs {FEWEST_STEPS} or more, with the "
            f"metrics {', '.join(NEEDED)}. Name a longer run, made by this version of asyncrl."
        )
    groups = read_lengths(JournalReader(run_folder / JOURNAL))
    lengths = measured_lengths(groups)
    dropped = statistics.fmean(group.dropped_for == DropReason.NO_SIGNAL for group in groups)
    costs = fit_costs(rows, recipe, groups, origin=f"measured in {len(rows)} steps of {run_folder}")
    run = PlannedRun.of(recipe, costs, tokens_held=lengths.tokens_held, no_signal_share=dropped)
    return Measured(recipe, _scaled(rows, run, lengths), lengths, dropped)


def can_be_measured(run_folder: Path) -> bool:
    """Whether `measure` would find enough; raises InputError where the metrics cannot be read."""
    return is_begun(run_folder / JOURNAL) and _is_enough(read_metrics(run_folder / METRICS).steps)


def _is_enough(rows: Sequence[Row]) -> bool:
    return len(rows) >= FEWEST_STEPS and all(key in rows[-1] for key in NEEDED)


def measured_lengths(groups: Sequence[GroupLengths]) -> Lengths:
    """Lengths of all groups, dropped ones too, which take as long. Compacted prompts are not in the mean."""
    prompts = [group.prompt_tokens for group in groups if group.prompt_tokens]
    responses = [[max(1, n) for n in group.response_tokens] for group in groups]
    return Lengths(responses, statistics.fmean(prompts) if prompts else 0.0)


def admission_seconds(groups: Sequence[GroupLengths]) -> float:
    """Time from one group to the next while the controller admits several: the mean of the shorter gaps in a
    version, as the longer ones are waits for a server."""
    gaps = sorted(
        after.admitted_seconds - before.admitted_seconds
        for before, after in itertools.pairwise(groups)
        if after.admitted_version == before.admitted_version
    )
    short = gaps[: int(SHORT_GAPS * len(gaps))]
    return max(0.0, statistics.fmean(short)) if short else 0.0


def fit_costs(rows: Sequence[Row], recipe: Recipe, groups: Sequence[GroupLengths], *, origin: str) -> Costs:
    """Costs before the scaling. The first row counts for none, as it holds the start."""
    rows = rows[1:]
    samples = recipe.rollout.samples_per_group
    tokens = training_tokens(
        _sum(rows, "num_sequences") / samples,
        samples_per_group=samples,
        prompt_tokens=measured_lengths(groups).prompt_tokens,
        response_tokens=_sum(rows, "num_tokens"),
    )
    packed = [row["num_packed_tokens"] for row in rows]
    train, per_token = fit_line(packed, [row["train_seconds"] for row in rows])
    fixed, per_request = fit_decodes(rows)
    prefill_seconds, computed = (_sum(rows, f"prefill_{name}") for name in ("seconds", "size"))
    num_begun = sum(group.admitted_version > groups[0].admitted_version for group in groups)
    publish, install, verify = (
        _sum(rows, key) / len(rows) for key in ("publish_seconds", "install_seconds", "verifier_seconds_p50")
    )
    known = ("wait_seconds", "drain_seconds", "train_seconds", "publish_seconds")
    others = _sum(rows, "step_seconds") - sum(_sum(rows, key) for key in known)
    return Costs(
        decode_seconds=fixed,
        decode_seconds_per_request=per_request,
        prefill_group_seconds=prefill_seconds / max(1, num_begun),
        prefill_seconds_per_token=prefill_seconds / max(1.0, computed),
        train_seconds=train,
        # Per token that the simulation knows: a pack has fewer, as sequences share some.
        train_seconds_per_token=per_token * sum(packed) / tokens,
        publish_seconds=publish,
        install_seconds=min(install, publish),
        between_seconds=max(0.0, others / len(rows)),
        verify_seconds=verify,
        admit_seconds=admission_seconds(groups),
        origin=origin,
    )


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """(intercept, slope) of the line of least squares, neither negative."""
    slope = statistics.linear_regression(x, y).slope if len(set(x)) > 1 else 0.0
    return _not_negative(slope, x=statistics.fmean(x), y=statistics.fmean(y))


def fit_decodes(rows: Sequence[Row]) -> tuple[float, float]:
    """(seconds of a pass, more for each request in it): the line of least squares through all passes."""
    names = ("passes", "size", "seconds", "size_squared", "size_seconds")
    passes, size, seconds, squared, product = (_sum(rows, f"decode_{name}") for name in names)
    if not passes:
        raise InputError(
            "the run's servers made no decode pass that could be measured. Calibrate on a run with more or "
            "longer responses (--from)."
        )
    spread = passes * squared - size * size
    slope = (passes * product - size * seconds) / spread if spread > 1e-9 * squared else 0.0
    return _not_negative(slope, x=size / passes, y=seconds / passes)


def _not_negative(slope: float, *, x: float, y: float) -> tuple[float, float]:
    """(intercept, slope) of a line through the means of both axes, neither of them negative."""
    slope = min(max(0.0, slope), y / x if x else 0.0)
    return y - slope * x, slope


def _scaled(rows: Sequence[Row], run: PlannedRun, lengths: Lengths) -> Costs:
    """`run.costs` with servers so much slower or faster that the simulated run has the measured
    request-seconds per token, over the same steps."""
    steady = rows[slice(*steady_range(run))] or rows
    running = sum(row["requests_per_server"] * row["step_seconds"] for row in steady) * run.num_servers
    wanted = running / sum(row["rollout_tokens_per_second"] * row["step_seconds"] for row in steady)
    run = run.with_queue(num_steps=len(rows))
    for _ in range(NUM_SCALINGS):
        steps = simulate(run, lengths).steady()
        factor = wanted * sum(s.tokens_generated for s in steps) / sum(s.request_seconds for s in steps)
        run = replace(run, costs=run.costs.with_slower_servers(factor))
        if abs(factor - 1.0) < 0.01:
            break
    return run.costs


def _sum(rows: Sequence[Row], key: str) -> float:
    """Over all steps; 0.0 where a step lacks it, as a drain of a run that never drains."""
    return sum(float(row.get(key) or 0.0) for row in rows)
