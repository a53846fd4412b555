"""Costs of a run: time per process, energy, operations, money. Sums over all its starts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

from asyncrl.journal.lengths import SampledTokens
from asyncrl.journal.usage import ENERGY, RUN, Usage
from asyncrl.model.flops import generation_flops
from asyncrl.model.folder import ModelShape
from asyncrl.observe.metrics.metrics_file import Row
from asyncrl.readers.report.schema import Cost, Energy, EnergyPart, Flops, ProcessUse, Time

HOUR = 3600.0
WATTS_PER_CORE, WATTS_PER_GPU = 10.0, 700.0
FORMULA = (
    "forward: 2 N per token + 4 L H D per position looked at (attention's scores). Generated: one forward "
    "pass per prompt token (once per group) and per sampled token but a response's last; the output layer "
    "per sampled token. Trained: forward + backward, 3 forward passes, over the packed tokens of each step "
    "(6 N per token), the output layer for response tokens alone; one forward pass more where log-probs "
    "were computed before the step. N: weights of the matrices that a token meets, without the embedding's "
    "look-up, of experts the chosen ones. L layers, H heads of size D. Not counted: norms, evaluations, "
    "activations and caches that are computed again."
)
SOURCE = "Chowdhery et al. 2022 (PaLM), appendix B, arxiv.org/abs/2204.02311; Kaplan et al. 2020, 2001.08361"

Per = Literal["machine", "gpu", "core"]


@dataclass(frozen=True, slots=True)
class Prices:
    """Price and power of the machine, as the user states them."""

    price_per_hour: float | None = None
    per: Per = "machine"
    watts_per_core: float = WATTS_PER_CORE
    """Power of a core while it computes, for an estimate."""
    watts_per_gpu: float = WATTS_PER_GPU


def flops_of(shape: ModelShape | None, sampled: SampledTokens | None, steps: Sequence[Row]) -> Flops:
    """`shape` is None where the model is not known; then only what the trainer counted is there."""
    generated = None
    if shape is not None and sampled is not None:
        generated = generation_flops(
            shape,
            num_prompt_tokens=sampled.num_prompt_tokens,
            num_sampled_tokens=sampled.num_sampled_tokens,
            num_fed_tokens=sampled.num_fed_tokens,
            num_looks=sampled.num_looks,
        )
    counted = [row["model_flops"] for row in steps if is_number(row.get("model_flops"))]
    trained = math.fsum(counted) if counted and len(counted) == len(steps) else None
    return Flops(generated=generated, trained=trained, formula=FORMULA, source=SOURCE)


def time_of(starts: Mapping[float, Sequence[Usage]], steps: Sequence[Row], num_cores: int | None) -> Time:
    """`starts` as `read_usage`; without any, wall time and hours are not known."""
    rows = [use for uses in starts.values() for use in uses]
    whole = [use for use in rows if use.name == RUN]
    processes = _processes(rows)
    wall = sum(use.wall_seconds for use in whole) if whole else None
    known = [process.cpu_hours for process in processes]
    return Time(
        wall_seconds=wall,
        step_seconds=math.fsum(seconds_of(row) for row in steps),
        cpu_hours=_sum(known) if known else None,
        gpu_hours=sum(use.wall_seconds * use.num_gpus for use in whole) / HOUR if whole else None,
        core_hours=None if wall is None or num_cores is None else wall * num_cores / HOUR,
        processes=processes,
    )


def seconds_of(row: Row) -> float:
    return float(row["step_seconds"]) if is_number(row.get("step_seconds")) else 0.0


def _processes(rows: Sequence[Usage]) -> list[ProcessUse]:
    names = dict.fromkeys(use.name for use in rows if use.name != RUN and not use.name.startswith(ENERGY))
    found = []
    for name in names:
        own = [use for use in rows if use.name == name]
        seconds = [use.cpu_seconds for use in own if use.cpu_seconds is not None]
        found.append(
            ProcessUse(
                name=name,
                wall_hours=sum(use.wall_seconds for use in own) / HOUR,
                cpu_hours=sum(seconds) / HOUR if len(seconds) == len(own) else None,
                num_gpus=max(use.num_gpus for use in own),
                gpu_hours=sum(use.wall_seconds * use.num_gpus for use in own) / HOUR,
                num_restarts=sum(use.num_restarts for use in own),
            )
        )
    return found


def _sum(values: Sequence[float | None]) -> float | None:
    """None where a part is not known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def energy_of(
    starts: Mapping[float, Sequence[Usage]], time: Time, prices: Prices, lacking: Sequence[str] = ()
) -> Energy | None:
    """Measured where every start could read its counters to the end, else estimated from hours; None where
    not even hours are known."""
    parts = [
        _energy_part(
            starts,
            "processors",
            hours=time.cpu_hours,
            watts=prices.watts_per_core,
            unit="CPU hours of the run's processes",
            option="--watts-per-core",
        )
    ]
    if time.gpu_hours:
        parts.append(
            _energy_part(
                starts,
                "GPUs",
                hours=time.gpu_hours,
                watts=prices.watts_per_gpu,
                unit="GPU hours",
                option="--watts-per-gpu",
            )
        )
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return Energy(
        joules=sum(part.joules for part in known),
        is_estimate=any(part.is_estimate for part in known),
        parts=known,
        lacking=list(lacking),
    )


def _energy_part(
    starts: Mapping[float, Sequence[Usage]],
    part: Literal["processors", "GPUs"],
    *,
    hours: float | None,
    watts: float,
    unit: str,
    option: str,
) -> EnergyPart | None:
    is_gpu = part == "GPUs"
    counters = [
        [use for use in uses if use.name.startswith(ENERGY) and use.name.startswith(f"{ENERGY}GPU") is is_gpu]
        for uses in starts.values()
    ]
    joules = [use.joules for own in counters for use in own]
    measured = _sum(joules)
    if counters and all(counters) and measured is not None:
        what = "NVML: the run's GPUs" if is_gpu else "RAPL: whole processor packages, other programs included"
        return EnergyPart(part=part, joules=measured, is_estimate=False, how=what)
    if hours is None:
        return None
    how = f"ESTIMATE, not measured: {hours:.3g} {unit} x {watts:g} W ({option})"
    return EnergyPart(part=part, joules=hours * HOUR * watts, is_estimate=True, how=how)


def cost_of(time: Time, prices: Prices) -> Cost | None:
    """None without a price, or where the hours are not known."""
    if prices.price_per_hour is None or time.wall_seconds is None:
        return None
    by_kind = {"machine": time.wall_seconds / HOUR, "gpu": time.gpu_hours, "core": time.core_hours}
    hours = by_kind[prices.per]
    if hours is None:
        return None
    return Cost(
        price_per_hour=prices.price_per_hour,
        per=prices.per,
        hours=hours,
        total=hours * prices.price_per_hour,
    )


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
