"""Tokens that are chosen among all of an optimizer step, against plain lists, however it is packed."""

import math

import pytest
import torch
from fakes.models import random_batch
from torch import Tensor

from asyncrl.recipe import Algorithm
from asyncrl.trainer.packing.batch import MicroBatch, rank_micro_batches
from asyncrl.trainer.parts.judgments import hits_by_covariance, top_by_entropy

BATCH = random_batch(3, num_groups=6, group_size=4)
LIMIT = 1
"""mask_staleness: some tokens do not count."""


def packed(budget: int) -> list[MicroBatch]:
    return rank_micro_batches(BATCH, budget_tokens=budget, rank=0, num_ranks=1)


def values_of(micro: MicroBatch) -> Tensor:
    """Log-probs that depend on the token alone, so that many are equal."""
    return -0.3 - 0.1 * (micro.targets % 17)


def named(micro_batches: list[MicroBatch], chosen: list[Tensor]) -> set[tuple[str, int]]:
    """(sequence, place) of each chosen token."""
    found = set()
    for micro, each in zip(micro_batches, chosen, strict=True):
        places = {
            line: (micro.line_ids == line).nonzero().flatten().tolist() for line in range(len(micro.lines))
        }
        for line, own in places.items():
            found |= {(micro.lines[line], own.index(t)) for t in own if each[t]}
    return found


def choose(budget: int, *, draw: str = "0:3", **keys: object) -> set[tuple[str, int]]:
    micro_batches = packed(budget)
    values = [values_of(micro) for micro in micro_batches]
    algorithm = Algorithm(**keys)
    return named(
        micro_batches, hits_by_covariance(micro_batches, values, algorithm, mask_staleness=LIMIT, draw=draw)
    )


def oracle() -> dict[tuple[str, int], float]:
    """Covariance of each token that counts, in plain floats."""
    rows = {}
    for s in BATCH.sequences:
        for t, (token, version) in enumerate(zip(s.response_tokens, s.token_versions, strict=True)):
            if BATCH.taken_version - version <= LIMIT:
                rows[s.sequence_id, t] = (-0.3 - 0.1 * (token % 17), s.advantage)
    mean = [sum(row[i] for row in rows.values()) / len(rows) for i in (0, 1)]
    return {name: (a - mean[1]) * (p - mean[0]) for name, (p, a) in rows.items()}


def test_kl_cov_takes_the_largest_covariances_of_the_whole_step():
    wanted = sorted(oracle().items(), key=lambda item: -item[1])
    count = int(0.1 * len(wanted))
    found = choose(8192, entropy_control={"name": "kl_cov", "share": 0.1})
    assert found >= {name for name, _ in wanted[:count]} and len(found) <= count + 4
    assert min(oracle()[name] for name in found) == pytest.approx(wanted[count - 1][1], abs=1e-4)
    for budget in (1, 30):
        assert choose(budget, entropy_control={"name": "kl_cov", "share": 0.1}) == found


def test_clip_cov_draws_its_share_from_the_range_by_seed_and_step_alone():
    keys = {"entropy_control": {"name": "clip_cov", "low": 0.05, "high": 1.5, "share": 0.1}}
    inside = {name for name, value in oracle().items() if 0.05 < value < 1.5}
    count = int(0.1 * len(oracle()))
    found = choose(8192, **keys)
    assert len(found) == count < len(inside) and found <= inside
    assert all(choose(budget, **keys) == found for budget in (1, 30))
    assert choose(8192, draw="0:4", **keys) != found != choose(8192, draw="1:3", **keys)
    # Every one of the range has its turn.
    drawn = [choose(8192, draw=f"0:{step}", **keys) for step in range(100)]
    assert set.union(*drawn) == inside


def test_a_range_of_fewer_tokens_than_the_share_is_taken_whole():
    keys = {"entropy_control": {"name": "clip_cov", "low": 0.9, "share": 1.0}}
    inside = {name for name, value in oracle().items() if 0.9 < value < 5.0}
    assert inside and choose(30, **keys) == inside
    positive = {name for name, value in oracle().items() if round(value * 2**14) > 0}
    assert choose(30, entropy_control={"name": "kl_cov", "share": 1.0}) == positive


def test_at_least_one_token_is_taken_and_none_where_none_counts():
    assert len(choose(30, entropy_control={"name": "kl_cov", "share": 1e-9})) >= 1
    micro_batches = packed(30)
    values = [values_of(micro) for micro in micro_batches]
    algorithm = Algorithm(entropy_control="clip_cov")
    chosen = hits_by_covariance(micro_batches, values, algorithm, mask_staleness=-1, draw="")
    assert not any(each.any() for each in chosen)
    assert hits_by_covariance(micro_batches, [], algorithm, mask_staleness=None, draw="") == []


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_the_top_by_entropy_are_those_of_the_whole_step_with_their_equals(share: float):
    entropies = {name: 0.1 * (round(1e6 * abs(value)) % 9) for name, value in oracle().items()}
    wanted = sorted(entropies.values(), reverse=True)[math.ceil(share * len(entropies)) - 1]
    expected = {name for name, value in entropies.items() if value >= wanted}
    for budget in (1, 30, 8192):
        micro_batches = packed(budget)
        values = [entropies_of(micro, entropies) for micro in micro_batches]
        chosen = top_by_entropy(micro_batches, values, share, mask_staleness=LIMIT)
        assert named(micro_batches, chosen) == expected


def entropies_of(micro: MicroBatch, known: dict[tuple[str, int], float]) -> Tensor:
    """Those of tokens that do not count are the highest. Rounding differs by micro-batch."""
    sizes = torch.bincount(micro.line_ids, minlength=len(micro.lines)).tolist()
    names = [(name, t) for name, size in zip(micro.lines, sizes, strict=True) for t in range(size)]
    return torch.tensor([known.get(name, 99.0) for name in names]) + 1e-7 * len(micro.lines)
