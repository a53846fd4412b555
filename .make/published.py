"""The page of the site about recipes of published runs: what each header says, and settings that are derived
from the recipe.

    python .make/published.py

prints it.
"""

from collections.abc import Sequence
from pathlib import Path

from asyncrl.data.benchmarks import Benchmark
from asyncrl.evaluation.asked_sets import benchmarks_of
from asyncrl.recipe import Algorithm, Recipe, Trainer
from asyncrl.recipe.algorithm_terms import PpoClip
from asyncrl.recipe.file import load_recipe

ROOT = Path(__file__).resolve().parents[1]
RECIPES = [*sorted((ROOT / "recipes" / "published").glob("*.yaml")), ROOT / "recipes" / "retool_qwen.yaml"]
PARTS = ("Source", "Expected", "Cost")
NOTHING = "-"
BEGIN = """# Published runs

Recipes of published runs, in `recipes/published/`, as their headers and keys say. None has been run by us.
The header of each also lists what differs from its source. P x n is prompts x samples of a batch; optimizer
steps are those of a batch, with the order in which responses fill its mini-batches; clips are below and above
1. Sets that are measured `before and after` are measured before the first step and after the last one.
"""


def page() -> str:
    """Markdown: a table of sources, one of training and one of evaluation."""
    recipes = [load_recipe(path) for path in RECIPES]
    sources = _table(
        ("recipe", "model", "data", "source", "expected", "cost"),
        [_source_row(path, recipe) for path, recipe in zip(RECIPES, recipes, strict=True)],
    )
    training = _table(
        ("recipe", "P x n", "response tokens", "optimizer steps", "learning rate", "advantage, mean over")
        + ("clip", "KL", "temperature, top-p"),
        [_training_row(recipe) for recipe in recipes],
    )
    evaluation = _table(
        ("recipe", "sets", "samples", "temperature, top-p", "tokens", "every"), _evaluation_rows(recipes)
    )
    return "\n".join(
        [BEGIN, "## Sources\n", sources, "\n## Training\n", training, "\n## Evaluation\n", evaluation, ""]
    )


def _source_row(path: Path, recipe: Recipe) -> Sequence[str]:
    found = header(path)
    model, data = recipe.model.path, recipe.data.train_sources()[0].path
    return f"`{path.stem}`", f"`{model}`", f"`{data}`", *(found[part] for part in PARTS)


def header(path: Path) -> dict[str, str]:
    """Part of the comment at the top of a recipe -> its text, on one line."""
    found, part = dict.fromkeys(PARTS, ""), ""
    for line in path.read_text(encoding="utf-8").split("\n\n")[0].splitlines():
        text = line.removeprefix("#").strip()
        name, colon, rest = text.partition(":")
        if colon and name and name[0].isupper() and len(name.split()) < 4:
            part, text = name, rest.strip()
        elif not text:
            part = ""
        if part in found and text:
            found[part] = f"{found[part]} {text}".strip()
    return found


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
        f"{algorithm.advantage.name}, {algorithm.reduction}",
        _clip(algorithm),
        _kl(algorithm),
        _sampling(rollout.temperature, rollout.top_p),
    )


def _schedule(trainer: Trainer) -> str:
    warmup = trainer.warmup_steps
    unit = "" if trainer.schedule_unit == "batches" else " optimizer"
    return trainer.learning_rate_schedule.name + (f" after {warmup}{unit} steps" if warmup else "")


def _clip(algorithm: Algorithm) -> str:
    low = NOTHING if algorithm.clip_low is None else _number(algorithm.clip_low)
    surrogate = algorithm.surrogate
    bound = surrogate.dual_clip if isinstance(surrogate, PpoClip) else None
    dual = "" if bound is None else f", dual {_number(bound)}"
    return f"{low} / {_number(algorithm.clip_high)}{dual}"


def _kl(algorithm: Algorithm) -> str:
    if not algorithm.kl.coefficient:
        return "0"
    return f"{_number(algorithm.kl.coefficient)}, {algorithm.kl.estimator} in {algorithm.kl.place}"


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


if __name__ == "__main__":
    print(page(), end="")
