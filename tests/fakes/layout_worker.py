"""One of several ranks that take the same steps under one layout after another, in one spawn.

    python -m fakes.layout_worker CASES FOLDER   (under torchrun's environment variables)

CASES is a JSON list of {"name", "model", "trainer", "algorithm", "critic", "saves", "resumes", "turns",
"kept", "top", "routed", "stage", "lora"}, of which all but the first three may be missing. Rank 0 writes
FOLDER/<name>.json, the metrics of each step, FOLDER/<name>.tokens, the record of tokens, FOLDER/<name>.spike,
which row has the largest part of the last gradient, and FOLDER/<name>/, what a publication of the model would
hold. A case that saves makes a checkpoint
before the last step; one that resumes takes that step only, from the checkpoint of another. "turns": whether
responses have turns, with credits and advantages of their own. "kept": whether they were sampled from some
tokens only. "top": how many likeliest tokens a teacher told, 0 without one. "routed": whether they come with
experts.
"""

import json
import sys
import warnings
from pathlib import Path

import msgspec
import torch
from fakes.models import random_batch
from fakes.recipes import make_recipe
from fakes.sequences import in_pairs, scored_by_teacher, with_kept_sets, with_routes, with_turns

NUM_STEPS = 3
TRAINER = {
    "learning_rate": 1e-2,
    # As large as a small gradient: with a tiny one Adam shows the rounding of a gradient near zero in full.
    "adam_epsilon": 1e-2,
    "weight_decay": 0.1,
    "tokens_per_micro_batch": 60,
    "clip_grad_norm": 0.5,
}


def take_steps(
    model: Path,
    trainer: dict,
    result: Path,
    *,
    algorithm: dict | None = None,
    critic: dict | None = None,
    saves: bool = False,
    resumes: str | None = None,
    turns: bool = False,
    kept: bool = False,
    top: int = 0,
    routed: bool = False,
    stage: str = "rl",
    lora: dict | None = None,
) -> None:
    """Trains from `model` and writes `result`.json and `result`/model.safetensors."""
    from asyncrl.model.folder import check_model_folder
    from asyncrl.model.layout import check_layout
    from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
    from asyncrl.trainer.network.convert import export_weights
    from asyncrl.trainer.network.export import write_weights
    from asyncrl.trainer.parts.critic import Critic
    from asyncrl.trainer.parts.records import Spikes, TokenRecord
    from asyncrl.trainer.parts.table import build_learner
    from asyncrl.trainer.ranks import ranks

    rollout = {"top_k": 10} if kept else {}
    sections = (
        {} if stage != "rl" else {"algorithm": algorithm or {}, "critic": critic or {}, "rollout": rollout}
    )
    sections["model"] = {"lora": lora}
    sections["teacher"] = {"path": "teacher", "top_k": top} if top else {}
    # The reference's log-probs are kept there.
    run = str(result.with_name(f"{result.name} run"))
    recipe = make_recipe(model, trainer=TRAINER | trainer, stage=stage, run_folder=run, **sections)
    shape = check_model_folder(model)
    ranks.arrange(check_layout(recipe, shape), seed=0)
    learner = build_learner(shape, recipe)
    metrics, tokens, first = [], [], 0
    if resumes is None:
        learner.load_base()
    else:
        first = Checkpoints(checkpoints_of(result.with_name(resumes)), num_kept=1).load_newest(learner)
    for step in range(first, NUM_STEPS):
        if saves and step == NUM_STEPS - 1:
            Checkpoints(checkpoints_of(result), num_kept=1).save(learner, step)
        # In the second step no rank has something to teach, in the third one has.
        batch = random_batch(step, num_groups=6, temperature=0.8, num_silent=(2, 6, 5)[step % 3])
        batch = with_turns(batch) if turns else batch
        batch = in_pairs(batch) if stage == "dpo" else batch
        batch = with_kept_sets(batch) if kept else batch
        batch = scored_by_teacher(batch, top) if top else batch
        batch = with_routes(batch) if routed else batch
        metrics.append(learner.step(batch))
        record = learner.part(TokenRecord)
        tokens += record.gathered() if record is not None else []
    spike = learner.part(Spikes).largest_row(1.0, 1.0)
    weights = export_weights(learner.model)
    critic = learner.part(Critic)
    if critic is not None:
        critic.before_saving()
    values = export_weights(critic.model) if critic is not None else iter([])
    if not ranks.is_first():
        assert list(weights) == list(values) == []
        return
    result.mkdir()
    write_weights(result, weights)
    if critic is not None:
        # The value head has the name of the output layer, whose place it takes.
        (result / "critic").mkdir()
        write_weights(result / "critic", values)
    result.with_suffix(".json").write_text(json.dumps(metrics))
    assert spike is not None
    result.with_suffix(".spike").write_text(json.dumps([spike.parameter, spike.row, spike.share]))
    result.with_suffix(".tokens").write_bytes(msgspec.msgpack.encode(tokens))


def checkpoints_of(result: Path) -> Path:
    return result.with_name(f"{result.name} checkpoints")


def main() -> None:
    warnings.filterwarnings("ignore")
    from asyncrl.trainer.ranks import ranks

    ranks.start(threads=1, seed=0)
    for case in json.loads(sys.argv[1]):
        result = Path(sys.argv[2]) / case["name"]
        keys = ("algorithm", "critic", "saves", "resumes", "turns", "kept", "top", "routed", "stage", "lora")
        options = {key: case[key] for key in keys if key in case}
        take_steps(Path(case["model"]), case["trainer"], result, **options)
    torch.distributed.barrier()
    ranks.stop()


if __name__ == "__main__":
    main()
