"""How certain the end of a response stays while a run's recorded batches are learned again under other keys.

    python tests/benchmarks/relearn.py RUN_FOLDER LAST_STEP [section.key=value ...]

RUN_FOLDER is a run of an addition recipe whose journal holds its tokens (replay.keep_steps). From the base
model on, the trainer's own step learns what the run learned, with the keys that follow changed; without any,
the weights are those of the run. Prints per step, over worked sums that the model should end behind the box,
by how many nats the end is likelier than the next token (least and mean), and of the row of `}` in the
embedding its share of the squared gradient and its distance from the base model, the median row's beside it.
Keys that change much make the batches those of another policy: read the first steps of these.
"""

import argparse
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import transformers
from torch import Tensor

from asyncrl.examples.rows import EOS_ID, draw_addition, prompt_of, work_addition
from asyncrl.journal.queue_state import load_batch
from asyncrl.journal.reader import JournalReader
from asyncrl.model.folder import check_model_folder
from asyncrl.recipe.file import load_recipe
from asyncrl.system.places import JOURNAL, RECIPE
from asyncrl.trainer.network.convert import export_weights
from asyncrl.trainer.parts.table import build_learner
from asyncrl.trainer.ranks import ranks

NUM_SUMS = 48
EMBEDDING = "model.embed_tokens.weight"


def worked_sums(tokenizer: Any) -> tuple[Tensor, Tensor]:
    """([n, L] right responses without their ends, padded behind them; [n] places of their last tokens)."""
    draws = random.Random(5)
    texts = []
    for _ in range(NUM_SUMS):
        terms = draw_addition(draws)
        working, total = work_addition(terms, draws, 0.0)
        texts.append(f"{prompt_of(terms)}<think>{working}</think>\\boxed{{{total}}}")
    rows = [tokenizer(text)["input_ids"] for text in texts]
    longest = max(map(len, rows))
    padded = torch.tensor([row + [EOS_ID] * (longest - len(row)) for row in rows])
    return padded, torch.tensor([len(row) - 1 for row in rows])


@torch.no_grad()
def margins(model: Any, tokens: Tensor, places: Tensor) -> Tensor:
    """[n] nats by which the end is likelier than any other token behind each response."""
    logits = model(tokens).logits[torch.arange(len(tokens)), places]
    ends = logits[:, EOS_ID].clone()
    logits[:, EOS_ID] = -torch.inf
    found: Tensor = ends - logits.max(-1).values
    return found


def before_each_step(optimizer: Any, look: Callable[[], None]) -> None:
    step = optimizer.step

    def looked_at() -> Any:
        look()
        return step()

    optimizer.step = looked_at


def relearn(run: Path, last: int, overrides: list[str]) -> None:
    """Torch's process group is there already."""

    recipe = load_recipe(run / RECIPE, overrides)
    learner = build_learner(check_model_folder(Path(recipe.model.path)), recipe)
    learner.load_base()
    base = dict(export_weights(learner.model))[EMBEDDING].clone()
    model = transformers.AutoModelForCausalLM.from_pretrained(recipe.model.path, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(recipe.model.path)
    tokens, places = worked_sums(tokenizer)
    box_end = tokenizer.convert_tokens_to_ids("}")
    row_norms: list[float] = []

    def gradient(parameter: Any) -> Tensor:
        found: Tensor = parameter.main_grad
        return found

    def look() -> None:
        gradients = dict(export_weights(learner.model, gradient))
        row_norms.append(gradients[EMBEDDING][box_end].norm().item())

    before_each_step(learner.optimizer, look)
    journal = JournalReader(run / JOURNAL)
    print("| step | margin, least | mean | row's share of the gradient | its distance | median row's |")
    print("|---|---|---|---|---|---|", flush=True)
    for version in range(last):
        found = learner.step(load_batch(journal, version, recipe.rollout.temperature))
        weights = dict(export_weights(learner.model))
        model.load_state_dict(weights)
        nats = margins(model, tokens, places)
        moved = (weights[EMBEDDING] - base).norm(dim=1)
        share = (row_norms[-1] / found["grad_norm"]) ** 2
        cells = [f"{nats.min():.2f}", f"{nats.mean():.2f}", f"{share:.0e}"]
        cells += [f"{moved[box_end]:.4f}", f"{moved.median():.4f}"]
        print(f"| {version + 1} | {' | '.join(cells)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("last_step", type=int)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    ranks.start(threads=1, seed=0)
    relearn(arguments.run_folder, arguments.last_step, arguments.overrides)
    ranks.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
