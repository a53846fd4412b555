"""The tables of docs/planning.md and of a step in docs/measurements/speed.md, made by `asyncrl plan`:
`python tests/docs/planned_models.py` prints them.

A model is what its published config.json says, as far as memory and speed depend on it. Another one joins by
an entry in MODELS.
"""

import contextlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.published import SHAPES
from families.known import TINY

from asyncrl.commands import main as cli
from asyncrl.model.folder import read_shape
from asyncrl.readers.planning.estimated import GPUS
from asyncrl.readers.planning.step_budget import Load, budget_table

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED_CONFIGS = {name: config for tiny in TINY.values() for name, (config, _) in tiny.published.items()}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen2.5-7B": SHAPES["Qwen/Qwen2.5-7B"],
    "Qwen2.5-32B": SHAPES["Qwen/Qwen2.5-32B"],
    "Qwen3-30B-A3B": PUBLISHED_CONFIGS["Qwen/Qwen3-30B-A3B"],
    "GLM-4.5-Air (106B-A12B)": PUBLISHED_CONFIGS["zai-org/GLM-4.5-Air"],
    "DeepSeek-V3 (671B-A37B)": PUBLISHED_CONFIGS["deepseek-ai/DeepSeek-V3"],
}
"""Rows of the first table, smallest first."""
QWEN3 = PUBLISHED_CONFIGS["Qwen/Qwen3-8B"] | {"num_attention_heads": 16, "num_hidden_layers": 28}
QWEN3 |= {"tie_word_embeddings": True, "hidden_size": 1024, "intermediate_size": 3072}
BUDGETS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Qwen3-0.6B": (QWEN3, {}),
    "Qwen3-1.7B": (QWEN3 | {"hidden_size": 2048, "intermediate_size": 6144}, {}),
    "Qwen2.5-7B": (MODELS["Qwen2.5-7B"], {"recompute": "selective"}),
    "Qwen3-30B-A3B": (MODELS["Qwen3-30B-A3B"], {"recompute": "selective", "expert": 8}),
}
"""Models of the table in docs/measurements/speed.md, and how they are trained."""
COUNTS = (8, 16, 32, 64, 128, 256, 512)
RECIPE = {
    "name": "plan",
    "model": {"dtype": "bfloat16", "context_tokens": 16384},
    "data": {"train": "none.jsonl"},
    "rollout": {"max_new_tokens": 14336},
    "trainer": {"recompute": "full"},
    "evaluation": {"every_steps": 0},
}
PUBLISHED = {
    "simplerl_zoo_7b": ("Qwen/Qwen2.5-7B", "H100"),
    "oat_zero_7b": ("Qwen/Qwen2.5-Math-7B", "A100"),
    "justrl_1.5b": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "A100"),
}
"""Recipes whose GPU hours were published -> model, and the device nearest to theirs."""
STEPS = 8
"""Simulated of each: they are synchronous, so that one is like the others."""


def plan(*words: str) -> str:
    """The output of the command. Raises RuntimeError where it refuses."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["plan", *words])
    if code:
        raise RuntimeError(err.getvalue())
    return out.getvalue()


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def fits_of(config: dict[str, Any], folder: Path) -> list[str]:
    """A cell for each of COUNTS."""
    recipe = RECIPE | {"model": {**RECIPE["model"], "path": str(write_config(folder / "model", config))}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    lines = plan(str(folder / "recipe.yaml"), "--fit", *map(str, COUNTS), "--device", "H100").splitlines()
    return [cell(line) for line in lines[1:]]


def cell(line: str) -> str:
    """A line of `asyncrl plan --fit` in short."""
    if "does not fit" in line:
        return "no"
    found = dict(re.findall(r"([\w.]+)=(\S+)", line))

    def number(key: str) -> int:
        return int(found.get(key, 1))

    parallel = "trainer.parallel."
    sizes = (("T", f"{parallel}tensor"), ("P", f"{parallel}pipeline"), ("E", f"{parallel}expert"))
    layout = " ".join(f"{letter}{number(key)}" for letter, key in sizes if number(key) > 1) or "whole"
    ranks = number("trainer.num_processes")
    servers = number("serving.num_servers"), number("serving.tensor_parallel_size")
    turns = "in turns" if "in turns" in line else f"{ranks} + {servers[0]} x {servers[1]}"
    memory = re.findall(r"([\d.]+) GB", line)
    host = f", host {float(memory[2]):.0f}" if "on the host" in line else ""
    return f"{layout}: {turns}, {float(memory[0]):.0f} GB{host}"


def fit_lines(folder: Path) -> list[str]:
    header = "| model | " + " | ".join(map(str, COUNTS)) + " |"
    lines = [header, "|---" * (len(COUNTS) + 1) + "|"]
    for number, (name, config) in enumerate(MODELS.items()):
        lines.append(f"| {name} | " + " | ".join(fits_of(config, folder / str(number))) + " |")
    return lines


def budget_lines(folder: Path) -> list[str]:
    """A column per model: operations, kilobytes, what bounds the part, microseconds by torch's kernels and by
    fused ones."""
    columns: dict[str, dict[str, str]] = {}
    for name, (config, keys) in BUDGETS.items():
        shape = read_shape(write_config(folder / name, config))
        for line in budget_table(shape, GPUS["H100"], Load(**keys))[2:]:
            part, flops, size, bound, now, fused = (cell.strip() for cell in line.strip("|").split("|"))
            found = f"{flops} GFLOP, {size} KB, {bound}: {now}".removeprefix("0 GFLOP, ") if bound else now
            columns.setdefault(part, {})[name] = found if now == fused else f"{found} -> {fused}"
    lines = ["| part | " + " | ".join(BUDGETS) + " |", "|---" * (len(BUDGETS) + 1) + "|"]
    last = columns.pop("all")
    for part, cells in [*columns.items(), ("all", last)]:
        lines.append(f"| {part} | " + " | ".join(cells.get(name, "") for name in BUDGETS) + " |")
    return lines


def hours_lines(folder: Path) -> list[str]:
    lines = ["| recipe | published | planned | seconds per step |", "|---|---|---|---|"]
    for name, (model, device) in PUBLISHED.items():
        path = ROOT / "recipes" / "published" / f"{name}.yaml"
        (cost,) = re.findall(r"^# Cost: (.*)$", path.read_text(), re.MULTILINE)
        config = write_config(folder / name, SHAPES[model])
        words = [f"model.path={config}", "--simulate", "--steps", str(STEPS), "--device", device]
        text = plan(str(path), *words)
        (seconds,) = re.findall(r"step +(\S+) s,", text)
        recipe = yaml.safe_load(path.read_text())
        servers, trainer = recipe["serving"], recipe["trainer"]
        gpus = servers["num_servers"] * servers.get("tensor_parallel_size", 1) + trainer["num_processes"]
        hours = gpus * trainer["num_steps"] * float(seconds) / 3600
        planned = f"{hours:,.0f} GPU hours, {trainer['num_steps']:,} steps on {gpus} {device}"
        lines.append(f"| `{name}` | {cost} | {planned} | {float(seconds):.0f} |")
    return lines


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print("\n".join(fit_lines(Path(temporary) / "fits")))
        print("\n".join(hours_lines(Path(temporary) / "hours")))
        print("\n".join(budget_lines(Path(temporary) / "budgets")))
