"""`asyncrl init`: a first recipe, for a CPU at once, or sized for a model, GPUs and data."""

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from asyncrl.commands.parser import number, whole
from asyncrl.commands.plan import check_fits
from asyncrl.errors import InputError
from asyncrl.launch.first_recipe.commented import write_new, write_skeleton
from asyncrl.launch.first_recipe.keys import Wish
from asyncrl.launch.first_recipe.rows import Rows, find_rows
from asyncrl.launch.first_recipe.sized import file_name, sized_recipe
from asyncrl.launch.prepare import fetch_shape
from asyncrl.model.shape import ModelShape
from asyncrl.readers.planning.estimated import GPUS, LIKELY_GPU, Device
from asyncrl.recipe import Recipe
from asyncrl.recipe.file import model_recipe, shown
from asyncrl.recipe.sources import EXPECTED
from asyncrl.system.files import read_text
from asyncrl.system.gpus import find_gpus
from asyncrl.system.places import RECIPE

HELP = (
    "Write a first recipe, with a comment beside each key. Without options: a folder that works on a CPU at "
    "once, with rows and a verifier of its own. With --model: one sized for GPUs. Overwrites nothing."
)
EXAMPLES = (
    "asyncrl init first && cd first && asyncrl train recipe.yaml",
    "asyncrl init --model Qwen/Qwen3-8B --gpus 8 --data gsm8k",
)
GOALS = ("math", "code", "tools")
CHATS = ("instruct", "chat", "it", "thinking", "sft", "dpo", "rl")
CHAT_FAMILIES = ("qwen3",)
"""Families whose models without a word of their own chat, and whose others say "Base"."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("."), help="folder to write into (default: this one)"
    )
    group = parser.add_argument_group("sized for a model")
    group.add_argument("--model", metavar="MODEL", help="hub id, or a Hugging Face folder")
    group.add_argument("--gpus", type=whole(1), metavar="N", help="how many (default: those of this machine)")
    group.add_argument(
        "--gpu-memory",
        type=number(above=0),
        metavar="GB",
        help="of each (default: of this machine's, else 80)",
    )
    group.add_argument("--data", metavar="DATA", help="gsm8k, mbpp, a hub id (owner/name:config) or a file")
    group.add_argument("--goal", choices=GOALS, help="what is trained (default: by the data, math or code)")


def run(arguments: argparse.Namespace) -> int:
    """0 when written. Raises InputError."""
    folder: Path = arguments.folder
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, expected a folder to write into.")
    if arguments.model is None:
        _refuse_alone(arguments)
        _tell(write_skeleton(folder), folder, "asyncrl train recipe.yaml")
        return 0
    if (folder / RECIPE).exists():
        # Before a hub is asked for anything.
        write_new(folder, {RECIPE: ""})
    if arguments.data is None:
        raise InputError(
            "--data is missing: what is trained on? A benchmark with training rows (gsm8k, mbpp), a hub id "
            f"such as DigitalLearningGmbH/MATH-lighteval, or {EXPECTED}."
        )
    num_gpus, gpu = _gpus(arguments)
    shape = fetch_shape(model_recipe(arguments.model))
    rows = _from_folder(find_rows(arguments.data), folder)
    goal = _goal(arguments, rows)
    wish = Wish(
        _path_from(arguments.model, folder),
        num_gpus,
        gpu,
        goal,
        is_chat(arguments.model),
        f"{file_name(arguments.model)}_{file_name(rows.title)}",
        f"asyncrl init {shlex.join(sys.argv[2:])}" if sys.argv[1:2] == ["init"] else "asyncrl init",
    )

    def check(recipe: Recipe, shape: ModelShape) -> None:
        check_fits(recipe, shape, gpu_memory_gb=gpu.memory_gb)

    sized = sized_recipe(wish, shape, rows, check)
    _tell(write_new(folder, {RECIPE: sized.text}), folder, "asyncrl check recipe.yaml, where the GPUs are")
    return 0


def is_chat(model: str) -> bool:
    """Whether the model answers chat messages: by its name where that says it is a base model, then by its
    tokenizer where that is here, else by its name."""
    words = file_name(model).split("_")
    if "base" in words or "pt" in words:
        return False
    has_template = _has_chat_template(Path(model))
    if has_template is not None:
        return has_template
    return any(word in CHATS for word in words) or words[0] in CHAT_FAMILIES


def _has_chat_template(folder: Path) -> bool | None:
    """None where there is no tokenizer."""
    if any((folder / name).exists() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        settings = json.loads(read_text(folder / "tokenizer_config.json"))
    except (OSError, ValueError):
        return None
    return isinstance(settings, dict) and bool(settings.get("chat_template"))


def _refuse_alone(arguments: argparse.Namespace) -> None:
    """Raises InputError for options that size a recipe without a model to size it for."""
    for key in ("gpus", "gpu_memory", "data", "goal"):
        if getattr(arguments, key) is not None:
            name = f"--{key.replace('_', '-')}"
            raise InputError(
                f"{name} is set but --model is not: without a model the recipe is for a CPU. Name one, as in "
                f"asyncrl init --model Qwen/Qwen3-8B --gpus 8 --data gsm8k."
            )


def _goal(arguments: argparse.Namespace, rows: Rows) -> str:
    """Raises InputError where the data are of another kind."""
    goal: str = arguments.goal or ("code" if rows.is_code else "math")
    if (goal == "math" and rows.is_code) or (goal == "code" and arguments.data == "gsm8k"):
        found = "programs, which the verifier code grades" if rows.is_code else "numbers as answers"
        raise InputError(
            f"--goal is {goal}, but --data is {arguments.data}, whose rows have {found}. Leave --goal out, "
            f"or name other data."
        )
    return goal


def _gpus(arguments: argparse.Namespace) -> tuple[int, Device]:
    """Number and kind of the GPUs that the recipe is for. Raises InputError."""
    here = find_gpus() if arguments.gpus is None or arguments.gpu_memory is None else ()
    if arguments.gpus is None and not here:
        raise InputError(
            "--gpus is missing, and this machine has none that could be counted. Say how many: --gpus 8."
        )
    num = len(here) if arguments.gpus is None else arguments.gpus
    gpu = GPUS[LIKELY_GPU]
    if here:
        gpu = next((device for name, device in GPUS.items() if name in here[0].name), gpu)
        if here[0].memory_mib is not None:
            gpu = replace(gpu, memory_gb=round(here[0].memory_mib * 2**20 / 1e9, 1))
    if arguments.gpu_memory is not None:
        if not 1 <= arguments.gpu_memory <= 1000:
            raise InputError(f"--gpu-memory is {arguments.gpu_memory:g}, expected gigabytes, such as 80.")
        gpu = replace(gpu, memory_gb=arguments.gpu_memory)
    return num, gpu


def _from_folder(rows: Rows, folder: Path) -> Rows:
    """`rows` with paths as a recipe in `folder` names them."""
    heldout = rows.heldout
    return replace(
        rows,
        train={**rows.train, "path": _path_from(rows.train["path"], folder)},
        heldout=None if heldout is None else {**heldout, "path": _path_from(heldout["path"], folder)},
    )


def _path_from(path: str, folder: Path) -> str:
    """A path of the current folder as seen from `folder`; a hub id stays."""
    if not Path(path).exists():
        return path
    try:
        return str(Path(path).resolve().relative_to(folder.resolve()))
    except ValueError:
        return str(Path(path).resolve())


def _tell(written: list[Path], folder: Path, then: str) -> None:
    print("\n".join(f"wrote {shown(path.absolute())}" for path in written))
    inside = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    print(f"next: {inside}{then}")
