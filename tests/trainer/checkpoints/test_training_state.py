"""A checkpoint of one process in layouts of up to eight ranks: each number is written once, and to the bit.

The ranks are played by one process (`fakes.played_ranks`); real ones: test_layouts.py, test_saving.py.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fakes.learners import make_learner
from fakes.models import random_batch, write_model
from fakes.template import Template
from families.known import TINY

from asyncrl.trainer.checkpoints.checkpoint import Checkpoints

TRAINER = {"learning_rate": 1e-2, "warmup_steps": 3}
SIZES = {"num_hidden_layers": 4}
# Not a multiple of the tensor ranks: rows are padded.
TIED = SIZES | {"tie_word_embeddings": True, "vocab_size": 41}
EXPERTS = TINY["Qwen3MoeForCausalLM"].settings
DISTRIBUTED = {"distributed_optimizer": True}
SEQUENCE = {"tensor": 2, "sequence_parallel": True}
STAGES = {"pipeline": 2, "virtual_stages": 2}
MODELS = {
    "float32": ("Qwen3", SIZES, "float32", {}),
    "tied, bfloat16": ("Qwen2", TIED, "bfloat16", {}),
    "experts": ("Qwen3Moe", SIZES | EXPERTS, "float32", {}),
    "critic": ("Qwen2", TIED, "bfloat16", {"advantage": "gae"}),
}
LAYOUTS = {
    "float32": [
        (2, {}),
        (3, DISTRIBUTED),
        (8, SEQUENCE | {"pipeline": 2}),
        (8, SEQUENCE | {"pipeline": 2} | DISTRIBUTED),
        (4, STAGES | DISTRIBUTED),
    ],
    "tied, bfloat16": [
        (2, {}),
        (3, DISTRIBUTED),
        (2, {"pipeline": 2}),
        (4, STAGES | DISTRIBUTED),
        (8, SEQUENCE | {"context": 2} | DISTRIBUTED),
    ],
    "experts": [
        (4, {"expert": 2}),
        (4, {"expert": 2} | DISTRIBUTED),
        (4, {"pipeline": 2, "expert": 2}),
        (8, SEQUENCE | {"expert": 4} | DISTRIBUTED),
        (4, SEQUENCE | DISTRIBUTED),
    ],
    "critic": [(3, DISTRIBUTED), (4, SEQUENCE | {"pipeline": 2})],
}
TYPICAL = {
    "tied, bfloat16": [(4, STAGES | DISTRIBUTED), (3, DISTRIBUTED)],
    "experts": [(8, SEQUENCE | {"expert": 4} | DISTRIBUTED)],
    "critic": [(4, SEQUENCE | {"pipeline": 2})],
}
"""Layouts of all kinds of ranks; every layout of every model is exhaustive."""


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        *(pytest.param(name, layouts, id=name) for name, layouts in TYPICAL.items()),
        *(
            pytest.param(name, layouts, id=f"{name}, all", marks=pytest.mark.exhaustive)
            for name, layouts in LAYOUTS.items()
        ),
    ],
)
def test_the_ranks_of_any_layout_hold_what_one_process_wrote(
    name: str, layouts: list[tuple[int, dict[str, Any]]], template: Template, tmp_path: Path
) -> None:
    family, sizes, dtype, algorithm = MODELS[name]
    model = write_model(tmp_path / "model", family, **sizes)
    shared = {"model": str(model), "dtype": dtype, "algorithm": algorithm}
    learner = make_learner(model, model={"dtype": dtype}, algorithm=algorithm, trainer=TRAINER)
    for step in range(2):
        learner.step(random_batch(step, num_groups=6))
    Checkpoints(tmp_path / "written", num_kept=1).save(learner, 2)
    cases = [
        shared | {"read": str(tmp_path / "written"), "num_ranks": num_ranks, "parallel": parallel}
        for num_ranks, parallel in layouts
    ]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = template.start(
            "fakes.played_ranks", [json.dumps(cases)], environment=dict(os.environ), output=output
        )
    assert process.wait(120) == 0, log.read_text()[-6000:]
