"""Costs and lengths of a run, from its folder: its steps' metrics, its journal.

A decode step costs a + b n + c k seconds with n requests that hold k tokens, a prefill d + e m with m tokens:
servers sum their passes up, and least squares tell the five. Sums over windows of steps tell how much slower
servers are while a trainer trains on the same processors. All are scaled at last until the simulated run has
the measured seconds per token: the calibration repeats the run that it is made from, and predicts others.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.errors import InputError
from asyncrl.journal.connection import is_begun
from asyncrl.journal.lengths import GroupLengths, read_lengths
from asyncrl.journal.reader import JournalReader
from asyncrl.observe.metrics.metrics_file import Row, read_metrics
from asyncrl.planning.lengths import MeasuredLengths
from asyncrl.planning.settings import Costs, PlannedRun, training_tokens
from asyncrl.planning.simulation import simulate, steady_range
from asyncrl.recipe import Recipe
from asyncrl.records import DropReason
from asyncrl.run.folder import read_run_recipe
from asyncrl.serving.pass_sums import DecodeSums
from asyncrl.system.run_files import JOURNAL, METRICS

WINDOW_STEPS = 6
"""Tokens are confirmed in chunks, some steps after they were generated: sums over as many steps forget it."""
FEWEST_STEPS = 8
MOST_POINTS = 1000
"""Points of a fitted line, at most: every pair of them counts."""
SPEEDS = tuple(percent / 100 for percent in range(100, 9, -5))
"""Server speeds during training, relative to their own, that are tried: the one that fits best counts."""
NUM_SCALINGS = 6
SHORT_GAPS = 0.8
"""Share of the gaps between two admissions that are the controller's own time."""
NEEDED = ("install_seconds", "requests_together", "num_packed_tokens", "train_seconds", "decode_held")

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one run."""

    recipe: Recipe
    costs: Costs
    lengths: MeasuredLengths
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
    origin = f"measured in {len(rows)} steps of {run_folder}"
    # Those of all rows but the first, as `fit_costs` takes them.
    num_begun = sum(group.admitted_version > groups[0].admitted_version for group in groups)
    costs = fit_costs(
        rows, recipe, prompt_tokens=lengths.prompt_tokens, num_groups_begun=num_begun, origin=origin
    )
    costs = replace(costs, admit_seconds=admission_seconds(groups))
    run = PlannedRun.of(recipe, costs, tokens_held=lengths.tokens_held(), no_signal_share=dropped)
    return Measured(recipe, scaled_to(rows, run, lengths), lengths, dropped)


def can_be_measured(run_folder: Path) -> bool:
    """Whether `measure` would find enough; raises InputError where the metrics cannot be read."""
    return is_begun(run_folder / JOURNAL) and _is_enough(read_metrics(run_folder / METRICS).steps)


def _is_enough(rows: Sequence[Row]) -> bool:
    return len(rows) >= FEWEST_STEPS and all(key in rows[-1] for key in NEEDED)


def measured_lengths(groups: Sequence[GroupLengths]) -> MeasuredLengths:
    """Lengths of all groups, dropped ones too, which take as long. Compacted prompts are not in the mean."""
    by_version: dict[int, list[list[int]]] = {}
    for group in groups:
        by_version.setdefault(group.admitted_version, []).append([max(1, n) for n in group.response_tokens])
    prompts = [group.prompt_tokens for group in groups if group.prompt_tokens]
    return MeasuredLengths(by_version, statistics.fmean(prompts) if prompts else 0.0)


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


def fit_costs(
    rows: Sequence[Row],
    recipe: Recipe,
    *,
    prompt_tokens: float,
    num_groups_begun: int,
    origin: str = "measured",
) -> Costs:
    """Costs before the last scaling; the first row counts for none, as it holds the start. `num_groups_begun`
    are those of the others."""
    rows = rows[1:]
    samples = recipe.rollout.samples_per_group
    tokens = sum(
        training_tokens(
            row["num_sequences"] / samples,
            samples_per_group=samples,
            prompt_tokens=prompt_tokens,
            response_tokens=row["num_tokens"],
        )
        for row in rows
    )
    prefill_pass, prefill_token = fit_prefills(rows)
    fixed, per_request = fit_decodes(rows)
    computed = float(_column(rows, "prefill_size").sum())
    packed = _column(rows, "num_packed_tokens")
    train, per_token = fit_line(packed, _column(rows, "train_seconds"))
    publish, install = (float(_column(rows, key).mean()) for key in ("publish_seconds", "install_seconds"))
    known = ("wait_seconds", "drain_seconds", "train_seconds", "publish_seconds")
    others = _column(rows, "step_seconds") - sum(_column(rows, key) for key in known)
    costs = Costs(
        decode_seconds=fixed,
        decode_seconds_per_request=per_request,
        prefill_pass_seconds=prefill_pass,
        # Caches hold what groups share, so that this is less than the prompt's tokens.
        prefill_group_seconds=prefill_token * computed / max(1, num_groups_begun),
        prefill_seconds_per_token=prefill_token,
        train_seconds=train,
        # Per token that the simulation knows: a pack has fewer, as sequences share some.
        train_seconds_per_token=per_token * float(packed.sum()) / tokens,
        publish_seconds=publish,
        install_seconds=min(install, publish),
        between_seconds=max(0.0, float(others.mean())),
        verify_seconds=float(_column(rows, "verifier_seconds_p50").mean()),
        origin=origin,
    )
    return _fit_speed(rows, costs, recipe.serving.fleet_size())


def scaled_to(rows: Sequence[Row], run: PlannedRun, lengths: MeasuredLengths) -> Costs:
    """`run.costs` with servers so much slower or faster that the simulated run has the measured
    request-seconds per token, over the same steps."""
    wanted = _latency(rows, steady_range(run), run.num_servers)
    run = replace(run, queue=replace(run.queue, num_steps=len(rows)))
    for _ in range(NUM_SCALINGS):
        outcome = simulate(run, lengths)
        steady = outcome.steady()
        found = sum(s.request_seconds for s in steady) / sum(s.tokens_generated for s in steady)
        factor = wanted / found
        run = replace(run, costs=run.costs.with_slower_servers(factor))
        if abs(factor - 1.0) < 0.01:
            break
    return run.costs


def fit_line(x: Floats, y: Floats, weights: Floats | None = None) -> tuple[float, float]:
    """(intercept, slope) of a line that outliers hardly move, neither negative.

    The slope is the weighted median over all pairs of points (Theil and Sen), a pair weighted by its distance
    and its lighter point; the intercept is the weighted median of what the slope leaves.
    """
    weights = np.ones_like(x) if weights is None else weights
    if len(x) > MOST_POINTS:
        chosen = np.linspace(0, len(x) - 1, MOST_POINTS).astype(int)
        x, y, weights = x[chosen], y[chosen], weights[chosen]
    first, second = np.triu_indices(len(x), 1)
    distance = x[second] - x[first]
    apart = distance != 0.0
    first, second, distance = first[apart], second[apart], distance[apart]
    slope = 0.0
    if len(distance):
        slopes = (y[second] - y[first]) / distance
        pairs = np.abs(distance) * np.minimum(weights[first], weights[second])
        slope = max(0.0, _weighted_median(slopes, pairs))
    intercept = _weighted_median(y - slope * x, weights)
    if intercept < 0.0:
        return 0.0, _weighted_median(y / x, weights)
    return intercept, slope


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _fit_speed(rows: Sequence[Row], costs: Costs, num_servers: int) -> Costs:
    """`costs` of servers as passes took on average, split into what they take without a trainer nearby, and
    their speed beside one."""
    step = _column(rows, "step_seconds")
    tokens = _column(rows, "rollout_tokens_per_second") * step
    running = _column(rows, "requests_per_server") * num_servers * step
    together = _column(rows, "requests_together")
    prefill = costs.prefill_pass_seconds * _column(rows, "prefill_passes")
    prefill += costs.prefill_seconds_per_token * _column(rows, "prefill_size")
    latency = costs.decode_seconds + costs.decode_seconds_per_request * together
    found = tokens * latency + prefill * together
    paused = np.minimum(_column(rows, "install_seconds") / step, 1.0)
    training = np.clip((_column(rows, "train_seconds") + _column(rows, "publish_seconds")) / step, 0.0, 1.0)
    training = np.maximum(training - paused, 0.0)
    window = np.ones(min(WINDOW_STEPS, len(rows)))
    found = np.convolve(found, window, "valid")
    best = (float("inf"), 1.0, 1.0)
    for speed in SPEEDS:
        # Request-seconds, as long as they would be without pauses and without a trainer nearby.
        alone = np.convolve(running * (1.0 - paused - (1.0 - speed) * training), window, "valid")
        scale = float(alone.sum() / found.sum())
        error = float((((scale * found - alone) / alone) ** 2).mean())
        # A slow trainer explains little or nothing: then it is not to blame.
        if error < 0.98 * best[0]:
            best = (error, scale, speed)
    _, scale, speed = best
    return replace(costs.with_slower_servers(scale), decode_speed_during_training=speed)


def fit_prefills(rows: Sequence[Row]) -> tuple[float, float]:
    """(seconds of a pass, more for each token in it)."""
    total = _totals(rows, "prefill")
    fixed, per_token = _least_squares(
        [[total["passes"], total["size"]], [total["size"], total["size_squared"]]],
        [total["seconds"], total["size_seconds"]],
    )
    return fixed, per_token


def fit_decodes(rows: Sequence[Row]) -> tuple[float, float]:
    """(seconds of a pass, more for each request in it), of requests that hold as much as they do on average.

    Within a run passes of many requests are those of young ones, which hold little: a line by requests alone
    would be too flat for another number of them.
    """
    total = _totals(rows, "decode")
    fixed, per_request, per_token = _least_squares(
        [
            [total["passes"], total["size"], total["held"]],
            [total["size"], total["size_squared"], total["size_held"]],
            [total["held"], total["size_held"], total["held_squared"]],
        ],
        [total["seconds"], total["size_seconds"], total["held_seconds"]],
    )
    return fixed, per_request + per_token * total["held"] / total["size"]


def _totals(rows: Sequence[Row], kind: str) -> dict[str, float]:
    """The sums of "decode" or "prefill" passes by name."""
    names = (field.name for field in fields(DecodeSums))
    total = {name: float(_column(rows, f"{kind}_{name}").sum()) for name in names}
    if not total["passes"]:
        raise InputError(
            f"the run's servers made no {kind} pass that could be measured. Calibrate on a run with more or "
            f"longer responses (--from), or state the costs (--costs)."
        )
    return total


def _least_squares(squares: list[list[float]], products: list[float]) -> list[float]:
    """The coefficients, none negative, of least error from a system's normal equations; as few as do."""
    matrix, wanted = np.array(squares), np.array(products)
    # Tokens are thousands where passes are one.
    scale = np.sqrt(np.maximum(matrix.diagonal(), 1e-300))
    matrix, wanted = matrix / np.outer(scale, scale), wanted / scale
    best, least = np.zeros(len(wanted)), 0.0
    for count in range(1, len(wanted) + 1):
        for chosen in map(list, itertools.combinations(range(len(wanted)), count)):
            found = np.zeros(len(wanted))
            found[chosen] = np.linalg.lstsq(matrix[np.ix_(chosen, chosen)], wanted[chosen])[0]
            error = float(found @ matrix @ found - 2.0 * found @ wanted)
            if found.min() >= 0.0 and error < least - 1e-9 * abs(least):
                best, least = found, error
    return [float(value) for value in best / scale]


def _latency(rows: Sequence[Row], steady: tuple[int, int | None], num_servers: int) -> float:
    """Request-seconds per generated token."""
    rows = rows[slice(*steady)] or rows
    step = _column(rows, "step_seconds")
    running = float((_column(rows, "requests_per_server") * num_servers * step).sum())
    return running / float((_column(rows, "rollout_tokens_per_second") * step).sum())


def _column(rows: Sequence[Row], key: str) -> Floats:
    """0.0 where a step lacks it, as a drain of a run that never drains."""
    return np.array([row.get(key) or 0.0 for row in rows], dtype=np.float64)
