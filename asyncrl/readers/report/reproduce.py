"""Training a run again by its report: the recipe as it was, what must be the same, and what came out.

An asynchronous run is not bit-identical when it is repeated: which version samples which token depends on
time. What repeats, within noise, is what it learns. Raises InputError with the way out.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from asyncrl.errors import InputError
from asyncrl.model.folder import model_digest
from asyncrl.model.source import find_source, is_of_hub
from asyncrl.observe.metrics.formats import NOTHING, compact
from asyncrl.readers.compare.bootstrap import Interval, combined
from asyncrl.readers.report.schema import Evaluation, RunReport, Share
from asyncrl.readers.report.tables import Table, share
from asyncrl.recipe import Recipe
from asyncrl.recipe.yaml_text import write_yaml
from asyncrl.run.folder import data_digests
from asyncrl.system.digests import sha256_of
from asyncrl.system.environment import describe_environment, differences
from asyncrl.system.rounding import signed
from asyncrl.system.run_files import RECIPE
from asyncrl.system.text_file import read_text

SUFFIX = "-reproduced"
"""Suffix of the run folder's name."""
NOT_IDENTICAL = (
    "An asynchronous run is not bit-identical when it is repeated: which version samples which token depends "
    "on time. (`asyncrl reproduce RUN STEP` repeats a recorded step to the last digit.)"
)
NOTHING_TO_COMPARE = "NO VERDICT: one of both runs has no evaluation after training."
VERDICT = {
    True: "SAME WITHIN THE INTERVAL: no difference of the last version's accuracies is clear at 95%.",
    False: "NOT THE SAME: 0 lies outside the 95% interval of a difference.",
}


def read_report(path: Path) -> RunReport:
    """Raises InputError for what is no report of one run."""
    try:
        text = read_text(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    try:
        return RunReport.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its start"
        several = " It is of several runs: name the report.json of one." if '"runs"' in text[:80] else ""
        raise InputError(
            f"{path} is not the report of a run (report.json of `asyncrl report`): {place}: "
            f"{first['msg']}.{several}"
        ) from None


def write_recipe(report: RunReport, path: Path, target: Path) -> None:
    """Writes the recipe of the run, as it was, with a run folder of its own: next to the run's where the
    report at `path` lies in it, else next to the report."""
    folder = path.absolute().parent
    run = folder if (folder / RECIPE).is_file() else folder / report.run.name
    raw = report.recipe | {"run_folder": f"{run}{SUFFIX}"}
    target.write_text(write_yaml(raw), encoding="utf-8")


def environment_remarks(report: RunReport, gpu_names: Sequence[str]) -> list[str]:
    """A sentence for each difference between the recorded environment and this process."""
    if report.environment is None:
        return ["the report holds no environment: the run recorded none"]
    return differences(report.environment, describe_environment(list(gpu_names)))


def check_sources(report: RunReport, recipe: Recipe) -> None:
    """Compares model, data and code with their recorded digests. Raises InputError that names all that are
    gone or differ."""
    problems = [*_model_problems(report, recipe), *_data_problems(report, recipe), *_code_problems(report)]
    if problems:
        raise InputError("\n".join(problems))


def find_missing(report: RunReport, recipe: Recipe) -> None:
    """Raises InputError for a model folder that is gone, before anything is fetched or prepared."""
    if is_of_hub(recipe.model) or recipe.prepare is not None:
        return
    if not Path(recipe.model.path).exists():
        raise InputError(_gone("model.path", recipe.model.path, report.model.digest))


def _gone(key: str, path: str, digest: str | None) -> str:
    expected = f" with the digest {digest}" if digest else ""
    return (
        f"{key} is {path}, which is not there. The run was trained with what lay there{expected}. If you "
        f"have it elsewhere, say {key}=PATH: it must have that digest."
    )


def _model_problems(report: RunReport, recipe: Recipe) -> Iterator[str]:
    source = find_source(recipe.model)
    found = None if source is None else model_digest(source.folder)
    if found is None:
        yield _gone("model.path", recipe.model.path, report.model.digest)
    elif report.model.digest is not None and found != report.model.digest:
        yield (
            f"model.path {recipe.model.path} has the digest {found}, the run was trained with "
            f"{report.model.digest}: config.json or the safetensors files differ. Say model.path=PATH."
        )


def _data_problems(report: RunReport, recipe: Recipe) -> Iterator[str]:
    try:
        found = data_digests(recipe)
    except InputError as error:
        expected = ", ".join(f"{key} {digest}" for key, digest in report.data.items())
        yield f"{error} Expected digests: {expected}. Say data.train=PATH or data.heldout=PATH."
        return
    for key, digest in report.data.items():
        if found.get(key, digest) != digest:
            yield (
                f"{key} has the digest {found[key]}, the run was trained on {digest}: the data differs. Say "
                f"{key}=PATH to name the right one."
            )


def _code_problems(report: RunReport) -> Iterator[str]:
    for file, digest in report.code.items():
        if not os.path.isfile(file):
            yield f"{file}, which the recipe names, is not there; its digest was {digest}. Put it back."
        elif sha256_of(Path(file)) != digest:
            yield f"{file}, which the recipe names, has changed since the run: its digest was {digest}."


def differences_of(before: Evaluation | None, after: Evaluation | None) -> dict[str, Interval]:
    """Differences at the last versions: measure -> reproduced - recorded, with a 95% interval."""
    found: dict[str, Interval] = {}
    if before is None or after is None:
        return found
    for name in ("greedy", "avg_at_k", "pass_at_k"):
        first: Share | None = getattr(before, name)
        second: Share | None = getattr(after, name)
        is_alike = name == "greedy" or before.k == after.k
        if first is not None and second is not None and is_alike:
            found[name] = combined(*(Interval(each.mean, each.low, each.high) for each in (first, second)))
    return found


def side_by_side(recorded: RunReport, reproduced: RunReport) -> tuple[Table, bool | None]:
    """The table, and whether both are the same within the interval; None without anything to compare."""
    rows: list[tuple[str, ...]] = []
    for version in ("base", "last", "best"):
        first, second = (
            None if report.heldout is None else getattr(report.heldout, version)
            for report in (recorded, reproduced)
        )
        found = differences_of(first, second)
        for name, title in (("greedy", "greedy"), ("avg_at_k", "avg@k"), ("pass_at_k", "pass@k")):
            cells = [NOTHING if each is None else share(getattr(each, name)) for each in (first, second)]
            if cells != [NOTHING, NOTHING]:
                rows.append((f"{version}: {title}", *cells, _words(found.get(name))))
    rows += _plain_rows(recorded, reproduced)
    last = [None if report.heldout is None else report.heldout.last for report in (recorded, reproduced)]
    decisive = differences_of(*last)
    note = (
        "Differences in points, 95% (Newcombe 1998 from both Wilson intervals, as if the tasks were drawn "
        "twice): noise of tasks and samples, not the spread between runs, which can be larger."
    )
    table = Table("Recorded and reproduced", ("", "recorded", "reproduced", "difference"), tuple(rows), note)
    is_same = None if not decisive else not any(each.is_clear() for each in decisive.values())
    return table, is_same


def _plain_rows(recorded: RunReport, reproduced: RunReport) -> list[tuple[str, ...]]:
    reports = (recorded, reproduced)
    return [
        ("steps", *(f"{report.run.steps}" for report in reports), ""),
        ("response tokens", *(compact(report.response_tokens.last) for report in reports), ""),
        ("tokens generated", *(f"{report.tokens.generated:,}" for report in reports), ""),
        ("tokens trained", *(f"{report.tokens.trained:,}" for report in reports), ""),
    ]


def _words(found: Interval | None) -> str:
    if found is None:
        return ""
    return f"{signed(100 * found.mean, 1)} [{signed(100 * found.low, 1)}, {signed(100 * found.high, 1)}]"
