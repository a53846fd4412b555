"""The same training with TRL's GRPOTrainer, for `make bench`: from a base model to a held-out accuracy.

    python tests/benchmarks/trl_runs.py recipes/r1_zero_arithmetic_cpu.yaml

Owns the environment .bench/trl, because TRL's pins and ours do not agree. The rules of the comparison stand
in trl/train.py. Does not run our side.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from asyncrl.recipe import Recipe
from asyncrl.recipe.file import load_recipe

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent / "trl"
ENVIRONMENT = REPOSITORY / ".bench" / "trl"
# "+cpu": no index has a CUDA build under this version.
TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def run_trl(
    recipe_path: Path,
    target: float = 0.95,
    *,
    max_steps: int | None = None,
    seed: int | None = None,
    cores: tuple[int, ...] = (0, 1),
    sequences_per_micro_batch: int | None = None,
    is_continuous_batching: bool = False,
    dtype: str = "float32",
) -> dict[str, Any]:
    """Trains until a greedy held-out evaluation reaches `target`, at most `max_steps` (else the recipe's).

    Returns is_reached, seconds_to_target (rollouts, rewards and training; no model load, no evaluation),
    inclusive_seconds (from the start of the process to the last evaluation), evaluation_seconds, steps,
    accuracy, accuracy_before, curve (seconds, accuracy of each evaluation), seconds_per_step (mean) and
    seconds_per_step_median. The base model must have been made before.
    """
    recipe = load_recipe(recipe_path)
    python = ensure_environment()
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(recipe, folder=Path(folder), target=target, cores=cores)
        if max_steps is not None:
            settings["max_steps"] = max_steps
        if seed is not None:
            settings["seed"] = seed
        if sequences_per_micro_batch is not None:
            settings["sequences_per_micro_batch"] = sequences_per_micro_batch
        settings |= {"is_continuous_batching": is_continuous_batching, "dtype": dtype}
        path = Path(folder) / "settings.json"
        path.write_text(json.dumps(settings))
        done = subprocess.run(
            [str(python), str(HERE / "train.py"), str(path)], stdout=subprocess.PIPE, text=True, check=True
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def settings_of(recipe: Recipe, *, folder: Path, target: float, cores: tuple[int, ...]) -> dict[str, Any]:
    """What trl/train.py reads: the recipe in TRL's terms, paths made absolute."""
    rollout, trainer, evaluation = recipe.rollout, recipe.trainer, recipe.evaluation
    assert recipe.data.heldout is not None, "the comparison stops at a held-out accuracy"
    return {
        "repository": str(REPOSITORY),
        "model": str(Path(recipe.model.path).absolute()),
        "train": str(Path(recipe.data.train).absolute()),
        "heldout": str(Path(recipe.data.heldout).absolute()),
        "num_heldout": evaluation.num_tasks,
        "is_shuffled": recipe.data.is_shuffled,
        "prompts_per_batch": rollout.groups_per_batch,
        "samples_per_prompt": rollout.samples_per_group,
        "sequences_per_micro_batch": rollout.groups_per_batch * rollout.samples_per_group,
        "max_new_tokens": rollout.max_new_tokens,
        "temperature": rollout.temperature,
        "learning_rate": trainer.learning_rate,
        "warmup_steps": trainer.warmup_steps,
        "adam_beta1": trainer.adam_beta1,
        "adam_beta2": trainer.adam_beta2,
        "adam_epsilon": trainer.adam_epsilon,
        "weight_decay": trainer.weight_decay,
        "clip_grad_norm": trainer.clip_grad_norm,
        "advantage": recipe.algorithm.advantage.name,
        "reduction": recipe.algorithm.reduction,
        "clip_low": recipe.algorithm.clip_low,
        "clip_high": recipe.algorithm.clip_high,
        "max_steps": trainer.num_steps,
        "evaluate_every": evaluation.every_steps or trainer.num_steps,
        "seed": recipe.seed,
        "target": target,
        "threads": len(cores),
        "cores": list(cores),
        "output_folder": str(folder),
    }


def ensure_environment() -> Path:
    """The Python of .bench/trl, installed when its requirements changed."""
    requirements = HERE / "requirements.txt"
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / "requirements.sha256"
    wanted = hashlib.sha256(TORCH.encode() + requirements.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"Making {ENVIRONMENT} with TRL, once ...", file=sys.stderr)
    venv.create(ENVIRONMENT, clear=True, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet"]
    # A wheel that pip finds without another index (a mirror, a folder of wheels) comes first.
    if subprocess.run([*install, TORCH], stderr=subprocess.DEVNULL).returncode != 0:
        subprocess.run([*install, TORCH, "--extra-index-url", TORCH_INDEX], check=True)
    subprocess.run([*install, TORCH, "-r", str(requirements)], check=True)
    stamp.write_text(wanted)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with TRL to a held-out accuracy; print JSON.")
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--micro-batch", type=int, help="sequences per forward and backward pass")
    parser.add_argument("--continuous-batching", action="store_true", help="transformers' paged generation")
    arguments = parser.parse_args()
    result = run_trl(
        arguments.recipe,
        arguments.target,
        max_steps=arguments.max_steps,
        seed=arguments.seed,
        sequences_per_micro_batch=arguments.micro_batch,
        is_continuous_batching=arguments.continuous_batching,
    )
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
