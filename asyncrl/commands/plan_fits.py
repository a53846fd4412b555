"""Changes that `asyncrl plan` offers where a recipe does not fit, and `--fit`: a recipe on several GPUs."""

import argparse

from asyncrl.errors import InputError, did_you_mean
from asyncrl.launch.meters.fits import Fit, Read, Settings, find_fits, fit_gpus
from asyncrl.launch.meters.memory import FULL_SHARE
from asyncrl.model.shape import ModelShape
from asyncrl.readers.planning.estimated import GPUS, LIKELY_GPU
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe


def offer(recipe: Recipe, shape: ModelShape, arguments: argparse.Namespace) -> str:
    """Lines: the smallest change of each kind that fits, with its knobs."""
    room = FULL_SHARE * _memory_gb(arguments) * 1e9
    fits = find_fits(recipe, shape, _reader(arguments), room=room, longest_prompt=arguments.longest_prompt)
    if not fits:
        return f"No layout of it fits such GPUs, not even 64 times as many. {_smaller(recipe)}"
    return "\n".join(["What fits, the smallest change of each kind:", *(_offer_line(fit) for fit in fits)])


def fit_table(recipe: Recipe, shape: ModelShape, arguments: argparse.Namespace) -> str:
    """A line for each of --fit."""
    size = _memory_gb(arguments)
    lines = [f"{'GPUs':>6s}  {'how':28s} {'a rank':>9s} {'a server':>9s} {'host':>9s}  settings"]
    for num_gpus in arguments.fit:
        fit = fit_gpus(
            recipe,
            shape,
            _reader(arguments),
            num_gpus=num_gpus,
            room=FULL_SHARE * size * 1e9,
            longest_prompt=arguments.longest_prompt,
        )
        lines.append(f"{num_gpus:6d}  " + (_fit_line(fit) if fit else f"does not fit {size:g} GB each"))
    return "\n".join(lines)


def _offer_line(fit: Fit) -> str:
    host = f", {_gb(fit.host_bytes)} of host memory per rank" if "host" in fit.what else ""
    return (
        f"  {fit.what:30s} {fit.num_gpus} GPUs, a rank {_gb(fit.rank_bytes)}, a server "
        f"{_gb(fit.server_bytes)}{host}: {fit.words()}"
    )


def _fit_line(fit: Fit) -> str:
    sizes = (fit.rank_bytes, fit.server_bytes, fit.host_bytes)
    return f"{fit.what:28s} " + " ".join(f"{_gb(size):>9s}" for size in sizes) + f"  {fit.words()}"


def _smaller(recipe: Recipe) -> str:
    context = recipe.model.context_tokens
    known = "" if context is None else f" from {context}"
    return f"Lower model.context_tokens{known}, which bounds a sequence, or take a smaller model."


def _memory_gb(arguments: argparse.Namespace) -> float:
    """Raises InputError for a --device without a data sheet."""
    if arguments.gpu_memory_gb is not None:
        return float(arguments.gpu_memory_gb)
    name = arguments.device or LIKELY_GPU
    if name not in GPUS:
        raise InputError(f"--device {name} is unknown. Known: {', '.join(GPUS)}.{did_you_mean(name, GPUS)}")
    return GPUS[name].memory_gb


def _reader(arguments: argparse.Namespace) -> Read:
    def read(settings: Settings) -> Recipe:
        words = [f"{key}={_yaml(value)}" for key, value in settings.items()]
        return load_recipe(arguments.recipe, [*arguments.overrides, *words])

    return read


def _yaml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(each)}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
