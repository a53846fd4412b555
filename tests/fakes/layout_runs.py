"""Runs the cases of fakes/layout_worker.py on several ranks, and compares their results with those of one."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import safetensors.torch
from fakes.launch_trainer import finish_trainer
from fakes.template import Template

from asyncrl.journal.packing import unpack_halves
from asyncrl.records import TrainedTokens
from asyncrl.system.network import free_ports

CASES_PER_SPAWN = 10


def run_cases(cases: list[dict[str, Any]], num_ranks: int, template: Template, root: Path) -> Path:
    """Some of the cases in one spawn: each leaves the threads of its groups behind, and a thousand threads
    slow those that follow."""
    for first in range(0, len(cases), CASES_PER_SPAWN):
        _spawn(cases[first : first + CASES_PER_SPAWN], num_ranks, template, root)
    return root


def _spawn(cases: list[dict[str, Any]], num_ranks: int, template: Template, root: Path) -> None:
    environment = os.environ | {"WORLD_SIZE": str(num_ranks), "MASTER_PORT": str(free_ports(1)[0])}
    log = root / "log"
    with log.open("ab") as output:
        ranks = [
            template.start(
                "fakes.layout_worker",
                [json.dumps(cases), str(root)],
                environment=environment | {"RANK": str(rank)},
                output=output,
            )
            for rank in range(num_ranks)
        ]
    assert finish_trainer(ranks, timeout_seconds=300) == [0] * num_ranks, log.read_text()[-6000:]


def assert_same_steps(got: Path, wanted: Path, *, limit: float = 1e-5, has_tokens: bool = True) -> None:
    """`limit`: largest difference of a weight. `has_tokens`: single tokens are recorded, as in stage rl."""
    found, expected = (json.loads(path.with_suffix(".json").read_text()) for path in (got, wanted))
    # A case that was resumed took the last steps only.
    assert found
    for left, right in zip(found, expected[-len(found) :], strict=True):
        assert left["loss"] == pytest.approx(right["loss"], abs=1e-5)
        assert left["grad_norm"] == pytest.approx(right["grad_norm"], rel=1e-4)
        for metric in left.keys() - {"num_packed_tokens"}:
            assert left[metric] == pytest.approx(right[metric], rel=1e-4, abs=1e-5, nan_ok=True), metric
    _assert_same_tokens(got, wanted, has_tokens=has_tokens)
    found, expected = (json.loads(path.with_suffix(".spike").read_text()) for path in (got, wanted))
    assert found[:2] == expected[:2] and found[2] == pytest.approx(expected[2], rel=1e-3)
    models = sorted(path.relative_to(wanted) for path in wanted.rglob("model.safetensors"))
    for model in models:
        found, expected = (safetensors.torch.load_file(path / model) for path in (got, wanted))
        assert found.keys() == expected.keys()
        worst = {key: (found[key] - tensor).abs().max().item() for key, tensor in expected.items()}
        assert max(worst.values()) < limit, (model, max(worst, key=worst.get))


def _assert_same_tokens(got: Path, wanted: Path, *, has_tokens: bool) -> None:
    """Facts of single tokens come from whichever ranks had them."""
    found, expected = (
        msgspec.msgpack.decode(path.with_suffix(".tokens").read_bytes(), type=list[TrainedTokens])
        for path in (got, wanted)
    )
    assert bool(found) is has_tokens
    for left, right in zip(found, expected[len(expected) - len(found) :], strict=True):
        assert left.trajectory_id == right.trajectory_id
        assert (left.advantages is None) == (right.advantages is None)
        for name in ("log_ratios", "entropies", "advantages"):
            values = [unpack_halves(getattr(each, name) or b"") for each in (left, right)]
            assert values[0] == pytest.approx(values[1], abs=4e-3), (left.trajectory_id, name)
