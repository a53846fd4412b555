"""Tables of docs/reproductions.md that are derived from the recipes of published runs.

    python tests/docs/published_settings.py

writes them into the page, between the two markers. tests/docs/test_reproductions.py compares.
"""

from collections.abc import Sequence
from pathlib import Path

from asyncrl.data.benchmarks import Benchmark
from asyncrl.evaluation.asked_sets import benchmarks_of
from asyncrl.recipe import Algorithm, Recipe, Trainer
from asyncrl.recipe.file import load_recipe

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproductions.md"
RECIPES = [*sorted((ROOT / "recipes" / "published").glob("*.yaml")), ROOT / "recipes" / "retool_qwen.yaml"]
BEGIN = "<!-- Written by `python tests/docs/published_settings.py` from the recipes. -->"
END = "<!-- End of what is written from the recipes. -->"
NOTHING = "-"


def tables() -> str:
    """Both tables, as Markdown between the markers."""
    recipes = [load_recipe(path) for path in RECIPES]
    training = _table(
        ("recipe", "P x n", "response tokens", "optimizer steps", "learning rate", "advantage, mean over")
        + ("clip", "KL", "temperature, top-p"),
        [_training_row(recipe) for recipe in recipes],
    )
    evaluation = _table(
        ("recipe", "sets", "samples", "temperature, top-p", "tokens", "every"),
        _evaluation_rows(recipes),
    )
    return f"{BEGIN}\n\n{training}\n\n{evaluation}\n\n{END}"


def _training_row(recipe: Recipe) -> Sequence[str]:
    rollout, algorithm, trainer = recipe.rollout, recipe.algorithm, recipe.trainer
    steps = f"{trainer.optimizer_steps_per_batch} by {trainer.mini_batch_order}"
    rate = f"{_number(trainer.learning_rate)} {_schedule(trainer)}"
    if algorithm.needs_critic():
        steps += f"; critic {recipe.critic_steps_per_batch()}"
        rate += f"; critic {_number(recipe.critic.learning_rate)}"
    return (
        f"`{recipe.name}`",
        f"{rollout.groups_per_batch} x {rollout.samples_per_group}",
        f"{rollout.max_new_tokens:,}",
        steps,
        rate,
        f"{algorithm.advantage}, {algorithm.reduction}",
        _clip(algorithm),
        _kl(algorithm),
        _sampling(rollout.temperature, rollout.top_p),
    )


def _schedule(trainer: Trainer) -> str:
    warmup = trainer.warmup_steps
    unit = "" if trainer.schedule_unit == "batches" else " optimizer"
    return trainer.learning_rate_schedule + (f" after {warmup}{unit} steps" if warmup else "")


def _clip(algorithm: Algorithm) -> str:
    low = NOTHING if algorithm.clip_low is None else _number(algorithm.clip_low)
    dual = "" if algorithm.dual_clip is None else f", dual {_number(algorithm.dual_clip)}"
    return f"{low} / {_number(algorithm.clip_high)}{dual}"


def _kl(algorithm: Algorithm) -> str:
    if not algorithm.kl_coefficient:
        return "0"
    return f"{_number(algorithm.kl_coefficient)}, {algorithm.kl_estimator} in {algorithm.kl_in}"


def _evaluation_rows(recipes: Sequence[Recipe]) -> list[Sequence[str]]:
    """A row for all sets that are measured alike, under all recipes that evaluate alike."""
    by_evaluation: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for recipe in recipes:
        by_evaluation.setdefault(tuple(_sets_measured_alike(recipe)), []).append(f"`{recipe.name}`")
    return [(", ".join(names), *row) for rows, names in by_evaluation.items() for row in rows]


def _sets_measured_alike(recipe: Recipe) -> list[tuple[str, ...]]:
    section = recipe.evaluation
    limit = f"{section.rollout_of(recipe.rollout).max_new_tokens:,}"
    sampling = _sampling(section.temperature, section.top_p)
    rows = [
        ("held-out", "greedy", NOTHING, limit, _every(section.every_steps)),
        ("held-out", str(section.samples_per_task), sampling, limit, _every(0)),
    ]
    rows += [_set_row(recipe, benchmark) for benchmark in benchmarks_of(recipe)]
    names: dict[tuple[str, ...], list[str]] = {}
    for name, *settings in rows:
        names.setdefault(tuple(settings), []).append(name)
    return [(", ".join(alike), *settings) for settings, alike in names.items()]


def _set_row(recipe: Recipe, benchmark: Benchmark) -> tuple[str, str, str, str, str]:
    settings = benchmark.settings
    is_sampled = benchmark.num_samples > 1 or benchmark.is_sampled
    top_p = recipe.evaluation.sampling_of(settings)["top_p"]
    return (
        f"`{benchmark.name}`",
        str(benchmark.num_samples) if is_sampled else "greedy",
        _sampling(benchmark.temperature, top_p) if is_sampled else NOTHING,
        f"{benchmark.max_new_tokens:,}",
        _every(0 if settings is None else settings.every_steps),
    )


def _every(steps: int) -> str:
    return f"{steps} steps" if steps else "before and after"


def _sampling(temperature: float, top_p: float) -> str:
    return f"{_number(temperature)}, {_number(top_p)}"


def _number(value: float) -> str:
    return f"{value:g}".replace("e-0", "e-")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def written() -> str:
    """The page's text from one marker to the other."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{BEGIN}{rest.partition(END)[0]}{END}"


def main() -> None:
    PAGE.write_text(PAGE.read_text(encoding="utf-8").replace(written(), tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
