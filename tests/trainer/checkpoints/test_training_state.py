"""A checkpoint of one process in layouts of up to eight ranks: each number is written once, and to the bit.

The ranks are played by one process (`fakes.played_ranks`); real ones: test_layouts.py, test_saving.py.
"""

import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.learners import make_learner
from fakes.models import random_batch, write_model
from fakes.template import Template
from families.known import TINY
from torch.distributed.checkpoint.metadata import MetadataIndex

from asyncrl.trainer.checkpoints.checkpoint import Checkpoints
from asyncrl.trainer.checkpoints.training_state import Box, SharedTensor, boxes_of_range

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


SHAPES = [(), (1,), (5,), (3, 4), (4, 1), (1, 5), (2, 3, 4), (1, 1, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_boxes_of_a_range_are_its_numbers_in_order(shape: tuple[int, ...]):
    count = math.prod(shape)
    whole = torch.arange(count).view(shape)
    for begin, end in itertools.combinations_with_replacement(range(count + 1), 2):
        found = []
        for offset, size in boxes_of_range(shape, begin, end):
            assert len(offset) == len(size) == len(shape)
            box = whole[tuple(slice(a, a + b) for a, b in zip(offset, size, strict=True))]
            assert tuple(box.shape) == size
            found += box.flatten().tolist()
        assert found == list(range(begin, end)), (begin, end)


def test_a_range_of_a_matrix_is_three_boxes_at_most():
    for begin, end in itertools.combinations(range(8 * 5 + 1), 2):
        assert len(list(boxes_of_range((8, 5), begin, end))) <= 3


def test_whole_rows_are_one_box():
    assert list(boxes_of_range((6, 4), 4, 20)) == [((1, 0), (4, 4))]


def test_a_host_copy_does_not_follow_the_tensor_and_the_next_one_takes_its_memory():
    numbers = torch.arange(6.0)
    shared = SharedTensor((2, 6))
    shared.add(Box((1, 0), numbers.view(1, 6)))
    copy = shared.host_copy(None)
    place = copy[torch.Size((1, 0))].data_ptr()
    numbers += 1
    assert copy[torch.Size((1, 0))].tolist() == [[0, 1, 2, 3, 4, 5]]
    again = shared.host_copy(copy)
    assert again[torch.Size((1, 0))].tolist() == [[1, 2, 3, 4, 5, 6]]
    assert again[torch.Size((1, 0))].data_ptr() == place


def test_what_is_written_names_the_whole_tensor_and_the_place_in_it():
    shared = SharedTensor((4, 6))
    shared.add(Box((1, 2), torch.zeros(1, 4, dtype=torch.bfloat16)))
    (item,) = shared.__create_write_items__("weight", shared)
    assert item.index == MetadataIndex("weight", torch.Size((1, 2)))
    assert item.tensor_data.size == (4, 6) and item.tensor_data.chunk.sizes == (1, 4)
    assert item.tensor_data.properties.dtype is torch.bfloat16
