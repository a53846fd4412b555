"""A checkpoint loaded in another layout and written again holds the same numbers, to the bit.

Read as a whole by torch's own converter, which knows nothing of layouts.
"""

import json
import os
from pathlib import Path

import torch
from fakes.launch_trainer import finish_trainer
from fakes.models import write_model
from fakes.resharding_worker import rewrite
from fakes.template import Template
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from asyncrl.ports import free_ports

SIZES = {"num_hidden_layers": 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
DISTRIBUTED = {"distributed_optimizer": True}
SEQUENCE = {"tensor": 2, "sequence_parallel": True}
STAGES = {"pipeline": 2, "virtual_stages": 2}
CHAINS = {
    "float32": ("Qwen3", SIZES, "float32", {}, [DISTRIBUTED, {"tensor": 2}, STAGES | DISTRIBUTED, {}]),
    "tied, bfloat16": (
        "Qwen2",
        # Not a multiple of the tensor ranks: rows are padded.
        SIZES | {"tie_word_embeddings": True, "vocab_size": 41},
        "bfloat16",
        {},
        [
            {"pipeline": 2} | DISTRIBUTED,
            SEQUENCE | DISTRIBUTED,
            {"context": 2} | DISTRIBUTED,
            {"pipeline": 2},
        ],
    ),
    "experts": (
        "Qwen3Moe",
        SIZES | EXPERTS,
        "float32",
        {},
        [
            {"expert": 2} | DISTRIBUTED,
            DISTRIBUTED,
            {"pipeline": 2},
            SEQUENCE | {"expert": 2},
            SEQUENCE | DISTRIBUTED,
        ],
    ),
    "critic": (
        "Qwen2",
        SIZES | {"tie_word_embeddings": True},
        "bfloat16",
        {"advantage": "gae"},
        [DISTRIBUTED, SEQUENCE, {"pipeline": 2} | DISTRIBUTED],
    ),
}
"""Model, type and algorithm, and the layouts on two ranks through which a checkpoint of one process goes."""


def whole(checkpoints: Path, scratch: Path) -> dict[str, object]:
    dcp_to_torch_save(checkpoints / "step-2", scratch)
    return torch.load(scratch, weights_only=False)


def chain_cases(name: str, root: Path) -> list[dict]:
    family, sizes, dtype, algorithm, layouts = CHAINS[name]
    model = write_model(root / "model", family, **sizes)
    shared = {"model": str(model), "dtype": dtype, "algorithm": algorithm}
    folders = [str(root / f"{i} written") for i in range(len(layouts) + 1)]
    cases = [shared | {"parallel": {}, "written": folders[0]}]
    for i, parallel in enumerate(layouts):
        cases.append(shared | {"parallel": parallel, "read": folders[i], "written": folders[i + 1]})
    return cases


def test_every_layout_holds_what_the_one_before_wrote(template: Template, tmp_path: Path) -> None:
    chains = {name: chain_cases(name, tmp_path / name) for name in CHAINS}
    for first, *_ in chains.values():
        rewrite(first)
    run_on_two_ranks([case for _, *others in chains.values() for case in others], template, tmp_path / "log")
    for name, cases in chains.items():
        family, sizes, *_ = CHAINS[name]
        wanted = whole(Path(cases[0]["written"]), tmp_path / "whole.pt")
        assert {key.split(".")[0] for key in wanted} >= {"model", "optimizer", "common"}
        # Written by one process on two ranks' checkpoint, too: the way back.
        back = cases[-1] | {
            "parallel": {},
            "read": cases[-1]["written"],
            "written": str(tmp_path / name / "back"),
        }
        rewrite(back)
        for case in [*cases[1:], back]:
            found = whole(Path(case["written"]), tmp_path / "whole.pt")
            assert_same(found, wanted, f"{name}: {case['parallel']}")


def assert_same(found: dict[str, object], wanted: dict[str, object], what: str) -> None:
    assert found.keys() == wanted.keys(), what
    for name, tensor in wanted.items():
        other = found[name]
        if not isinstance(tensor, torch.Tensor):
            continue
        assert tensor.dtype == other.dtype, (what, name)
        rows = min(len(tensor), len(other))
        # Rows that pad the vocabulary come and go with the tensor ranks.
        assert torch.equal(tensor[:rows], other[:rows]), (what, name)
    counters, others = wanted["common"]["counters"], found["common"]["counters"]
    assert counters == others and all(each["adam_steps"] == 2 for each in counters.values()), what


def run_on_two_ranks(cases: list[dict], template: Template, log: Path) -> None:
    environment = os.environ | {"WORLD_SIZE": "2", "MASTER_PORT": str(free_ports(1)[0])}
    with log.open("ab") as output:
        ranks = [
            template.start(
                "fakes.resharding_worker",
                [json.dumps(cases)],
                environment=environment | {"RANK": str(rank)},
                output=output,
            )
            for rank in range(2)
        ]
    assert finish_trainer(ranks, timeout_seconds=300) == [0, 0], log.read_text()[-6000:]
