"""Numbers as the journal stores them, and the sequences of one scored trajectory."""

import json
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.records import CREDITS, Columns, Credits, ScoredSequence, Trajectory, TurnAdvantages

NUMBER_BYTES = 4
"""Size of a token and of a log-prob."""
HALF_BYTES = 2
_IS_LITTLE = sys.byteorder == "little"


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """int32, little-endian."""
    return _in_file_order(array("i", tokens)).tobytes()


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """float32, little-endian."""
    return _in_file_order(array("f", logprobs)).tobytes()


def unpack_tokens(blob: bytes) -> list[int]:
    return _in_file_order(array("i", blob)).tolist()


def unpack_logprobs(blob: bytes) -> list[float]:
    return _in_file_order(array("f", blob)).tolist()


def pack_places(values: Sequence[tuple[int, float]], count: int) -> bytes:
    """(place, value) each -> `count` numbers as `pack_logprobs` packs them, 0 elsewhere."""
    found = [0.0] * count
    for place, value in values:
        found[place] = value
    return pack_logprobs(found)


def unpack_halves(blob: bytes) -> list[float]:
    """float16, little-endian; may hold NaN."""
    return list(struct.unpack(f"<{len(blob) // HALF_BYTES}e", blob))


def _in_file_order(values: "array[Any]") -> "array[Any]":
    if not _IS_LITTLE:
        values.byteswap()
    return values


def pack_scores(scores: Mapping[str, float]) -> str | None:
    """Name -> score, as JSON; None for none. Floats keep every bit."""
    return json.dumps(dict(scores)) if scores else None


def unpack_scores(text: str | None) -> dict[str, float]:
    return {} if text is None else {name: float(score) for name, score in json.loads(text).items()}


def pack_pairs(pairs: Sequence[tuple[int, float]]) -> str | None:
    """(whole number, float) each, as JSON; None for none. Floats keep every bit."""
    return json.dumps([list(pair) for pair in pairs]) if pairs else None


def unpack_pairs(text: str | None) -> list[tuple[int, float]]:
    return [] if text is None else [(number, float(value)) for number, value in json.loads(text)]


# Rewards and advantages inside a trajectory are kept for all of its sampled tokens, branch after branch. Here
# each branch gets its own part.
def sequences_of_trajectory(
    trajectory: Trajectory,
    *,
    reward: float,
    advantage: float,
    credits: Credits,
    turn_advantages: TurnAdvantages,
    branch_rewards: Mapping[str, float],
    outcome: str,
    source: str,
    columns: Mapping[str, Columns],
) -> list[ScoredSequence]:
    """One per branch with sampled tokens: an agent may have asked for nothing. `branch_rewards` of branches
    that have a verdict each, and `columns` of those that have some beside their segments', by their ids, the
    trajectory's own among them."""
    lines = trajectory.lines()
    lengths = [line.num_sampled_tokens() for line in lines]
    found = []
    for line, own_credits, runs in zip(
        lines, split_credits(credits, lengths), split_runs(turn_advantages, lengths), strict=True
    ):
        if line.num_sampled_tokens():
            own = runs[0][1] if runs else advantage
            earned = {CREDITS: pack_places(own_credits, line.num_sampled_tokens())} if own_credits else {}
            found.append(
                ScoredSequence.of(
                    line,
                    reward=branch_rewards.get(line.trajectory_id, reward),
                    advantage=own,
                    turn_advantages=runs if any(each != own for _, each in runs) else [],
                    finish=trajectory.finish,
                    outcome=outcome,
                    source=source,
                    columns=columns.get(line.trajectory_id, {}) | earned,
                )
            )
    return found


def split_credits(credits: Credits, lengths: Sequence[int]) -> list[Credits]:
    """The credits of each branch, at places within it; `lengths` are the branches' sampled tokens."""
    found: list[Credits] = []
    first = 0
    for length in lengths:
        found.append([(place - first, reward) for place, reward in credits if 0 <= place - first < length])
        first += length
    return found


def split_runs(runs: TurnAdvantages, lengths: Sequence[int]) -> list[TurnAdvantages]:
    """The runs of each branch. A turn, and so a run, lies in one branch; without runs, none."""
    found: list[TurnAdvantages] = []
    left = list(runs)
    for length in lengths:
        own: TurnAdvantages = []
        while left and sum(count for count, _ in own) < length:
            own.append(left.pop(0))
        found.append(own)
    return found
