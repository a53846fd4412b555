"""Runs that differ in their seed alone, as one: mean and Student's t interval over runs."""

from collections.abc import Sequence
from typing import Any

from asyncrl.readers.compare.bootstrap import over_seeds
from asyncrl.readers.compare.recipes import OWN
from asyncrl.readers.report.schema import Evaluation, RunReport, SeedGroup, SeedMean

MEASURES = ("greedy", "avg_at_k", "pass_at_k")


def group_by_seed(reports: Sequence[RunReport]) -> list[SeedGroup]:
    """Groups of two or more runs. Runs of another model or other data are no twins, whatever their paths."""
    found: list[list[RunReport]] = []
    for report in reports:
        group = next((group for group in found if _settings(group[0]) == _settings(report)), None)
        if group is None:
            found.append([report])
        else:
            group.append(report)
    return [_group(members) for members in found if len({r.seeds.recipe for r in members}) > 1]


def _settings(report: RunReport) -> tuple[Any, ...]:
    """Settings that the runs of a group share. Digests stand for paths where they are known."""
    recipe = {key: value for key, value in report.recipe.items() if key not in OWN}
    recipe["verifying"] = _without(recipe.get("verifying"), "folder")
    if report.model.digest is not None:
        recipe["model"] = _without(recipe.get("model"), "path")
    return recipe, report.model.digest, report.data, sorted(report.code.values())


def _without(section: Any, key: str) -> Any:
    return {name: value for name, value in section.items() if name != key} if section else section


def _group(members: Sequence[RunReport]) -> SeedGroup:
    measures = {}
    for version in ("base", "last", "best"):
        for measure in MEASURES:
            values = [_value(report, version, measure) for report in members]
            known = [value for value in values if value is not None]
            if len(known) == len(members):
                measures[f"{version} {measure}"] = mean_over_runs(known)
    return SeedGroup(
        name=members[0].run.name,
        runs=[report.run.folder for report in members],
        seeds=[report.seeds.recipe for report in members],
        measures=measures,
    )


def _value(report: RunReport, version: str, measure: str) -> float | None:
    if report.heldout is None:
        return None
    evaluation: Evaluation | None = getattr(report.heldout, version)
    share = None if evaluation is None else getattr(evaluation, measure)
    return None if share is None else float(share.mean)


def mean_over_runs(values: Sequence[float]) -> SeedMean:
    """mean +- t s / sqrt(n), not cut to [0, 1]. Two values at least."""
    found = over_seeds(values)
    assert found is not None
    return SeedMean(mean=found.mean, low=found.low, high=found.high, num_runs=len(values))
