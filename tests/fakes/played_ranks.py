"""A checkpoint loaded by every rank of a layout, and what each would write of it: one process plays them all.

    python -m fakes.played_ranks CASES

CASES is a JSON list of objects: model, dtype, algorithm, read, num_ranks, parallel. Fails unless the boxes of
all ranks cover each tensor once and are together what was read, and Megatron finds in its optimizer what it
rounded to the model's weights. Neither loading nor describing what is written asks another rank, so the ranks
can come one after the other.
"""

import json
import math
import sys
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from fakes.recipes import make_recipe
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.testing._internal.distributed.fake_pg import FakeStore

Whole = dict[str, torch.Tensor]


def play(case: dict, rank: int, whole: Whole) -> SavePlan:
    """Puts what `rank` would write into `whole`."""
    from asyncrl.model.folder import check_model_folder
    from asyncrl.model.layout import check_layout
    from asyncrl.trainer.checkpoints import checkpoint
    from asyncrl.trainer.checkpoints.training_state import SharedTensor
    from asyncrl.trainer.parts.table import build_learner
    from asyncrl.trainer.ranks import ranks

    sections = {
        "trainer": {"num_processes": case["num_ranks"], "parallel": case["parallel"]},
        "model": {"dtype": case["dtype"]},
        "algorithm": case["algorithm"],
    }
    model = Path(case["model"])
    recipe, shape = make_recipe(model, **sections), check_model_folder(model)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=case["num_ranks"])
    ranks.arrange(check_layout(recipe, shape), seed=0)
    learner = build_learner(shape, recipe)
    checkpoint.Checkpoints(Path(case["read"]), num_kept=1).load(learner, 2)
    if case["dtype"] == "bfloat16":
        before = [parameter.clone() for parameter in learner.model.parameters()]
        for member in learner.optimizer.chained_optimizers:
            member._copy_main_params_to_model_params()
        assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True)), case
    items: list[WriteItem] = []
    for name, shared in checkpoint._written(learner, 2).items():
        if not isinstance(shared, SharedTensor):
            continue
        found = shared.__create_write_items__(name, shared)
        for item in found:
            chunk, data = item.tensor_data.chunk, shared[item.index.offset]
            place = tuple(slice(a, a + b) for a, b in zip(chunk.offsets, chunk.sizes, strict=True))
            whole.setdefault(name, torch.full(shared.shape, math.nan, dtype=data.dtype))[place] = data
        items += found
    ranks.stop()
    return SavePlan(items)


def check(case: dict, scratch: Path) -> None:
    whole: Whole = {}
    plans = [play(case, rank, whole) for rank in range(case["num_ranks"])]
    # Refuses gaps and overlaps.
    DefaultSavePlanner(flatten_state_dict=False).create_global_plan(plans)
    dcp_to_torch_save(Path(case["read"]) / "step-2", scratch)
    wanted = torch.load(scratch, weights_only=False)
    assert whole.keys() == wanted.keys() - {"common"}, case
    for name, tensor in whole.items():
        # Rows that pad the vocabulary depend on the tensor ranks.
        rows = min(len(tensor), len(wanted[name]))
        assert torch.equal(tensor[:rows], wanted[name][:rows]), (case, name)
        assert not tensor[rows:].any(), (case, name)


def main() -> None:
    warnings.filterwarnings("ignore")
    from asyncrl.trainer.ranks import megatron, ranks

    megatron.run_on_cpu()
    torch.set_num_threads(1)
    new_group = dist.new_group

    def fake_group(*arguments: object, **keywords: object) -> dist.ProcessGroup:
        """Its collectives do nothing and wait for nobody."""
        return new_group(*arguments, **keywords | {"backend": "fake"})

    joined = ranks._Joined(ranks.LONGEST_WAIT, control=mock.Mock())
    with (
        mock.patch.object(dist, "new_group", fake_group),
        mock.patch.object(ranks, "_us", lambda: joined),
        tempfile.TemporaryDirectory() as scratch,
    ):
        for case in json.loads(sys.argv[1]):
            check(case, Path(scratch) / "whole.pt")


if __name__ == "__main__":
    main()
