"""Which ready groups make a batch, in any order of preference, and what the order does to lengths.

A group admitted at version v has the deadline v + max_staleness, the last version of the trainer that may
take it. Let n(d) be the untaken groups with deadline <= d and B the batch size. The queue's admission rule
gives n(d) <= (d - s + 1) B before version s takes; a batch is right when it leaves n(d) <= (d - s) B for
every d.
`choose` takes, for each deadline in rising order, as many of the groups that are due by then as that demands,
and fills up with the groups it likes best: so the bound holds for every order of preference, each group
is taken at its deadline at the latest, and with the order "admission" the batch is the oldest
ready groups. A drop (a fault, a group without signal) lowers n and harms nothing.
"""

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from asyncrl.records import PolicyVersion
from asyncrl.replay.group import Group, GroupState


class Candidate(Protocol):
    """A group of the queue, or a simulated one, as a choice sees it."""

    @property
    def group_id(self) -> int: ...
    @property
    def admitted_version(self) -> PolicyVersion: ...
    @property
    def state(self) -> GroupState: ...


CandidateT = TypeVar("CandidateT", bound=Candidate)
Preference = Callable[[Group], tuple[float, ...]]
"""Smallest first; the group id breaks ties."""


def mean_version(group: Group) -> float:
    """Mean policy version over the tokens of a group; the admitting one while it has none."""
    lines = [line for trajectory in group.trajectories for line in trajectory.lines()]
    counts = [(segment.version, len(segment.tokens)) for line in lines for segment in line.sampled()]
    total = sum(count for _, count in counts)
    return sum(version * count for version, count in counts) / total if total else group.admitted_version


def signal(group: Group) -> float:
    """Variance of the raw correctness: 0 when all trajectories did equally well.

    Shaping of rewards is left out: it breaks ties that mean nothing.
    """
    found = _correctness(group)
    return statistics.pvariance(found) if len(found) > 1 else 0.0


def _correctness(group: Group) -> list[float]:
    """Correctness of the sampled trajectories that got a verdict."""
    greedy = {t.trajectory_id for t in group.trajectories if t.is_greedy}
    scores = (score for name, score in group.scores.items() if name not in greedy)
    return [score.correctness for score in scores if score.correctness is not None]


ORDERS: dict[str, Preference] = {
    "admission": lambda group: (group.group_id,),
    "strict_admission": lambda group: (group.group_id,),
    "freshness": lambda group: (-mean_version(group), group.group_id),
    "signal": lambda group: (-signal(group), group.group_id),
}


def choose(
    live: Sequence[Group],
    version: PolicyVersion,
    *,
    batch_size: int,
    max_staleness: int,
    order: str,
    has_signal: Callable[[Group], bool],
) -> list[Group] | None:
    """The batch for the trainer of `version`, or None while it must wait; `live` in admission order.

    The batch is in admission order, as it is read back from the journal. The order signal likes groups that
    have one, by `has_signal`, better than all others.
    """
    if order == "strict_admission":
        return choose_oldest(live, batch_size=batch_size)
    liked = sorted((group for group in live if group.state is GroupState.READY), key=ORDERS[order])
    if order == "signal":
        liked.sort(key=has_signal, reverse=True)
    return choose_liked(live, liked, version, batch_size=batch_size, max_staleness=max_staleness)


def choose_oldest(live: Sequence[CandidateT], *, batch_size: int) -> list[CandidateT] | None:
    """The oldest groups, whether others are ready or not; None until all of them are."""
    oldest = list(live[:batch_size])
    is_ready = len(oldest) == batch_size and all(group.state is GroupState.READY for group in oldest)
    return oldest if is_ready else None


def choose_liked(
    live: Sequence[CandidateT],
    liked: Sequence[CandidateT],
    version: PolicyVersion,
    *,
    batch_size: int,
    max_staleness: int,
) -> list[CandidateT] | None:
    """The batch of ready groups that is liked best among those that keep every deadline, in admission order.

    `live` in admission order, `liked` its ready groups, best first. None while no batch keeps the deadlines.
    """
    if len(liked) < batch_size:
        return None
    chosen: dict[int, CandidateT] = {}
    num_untaken = 0
    for deadline, due in itertools.groupby(live, key=lambda group: group.admitted_version + max_staleness):
        num_untaken += sum(1 for _ in due)
        num_missing = num_untaken - (deadline - version) * batch_size - len(chosen)
        if num_missing > 0:
            in_time = [
                group
                for group in liked
                if group.admitted_version + max_staleness <= deadline and group.group_id not in chosen
            ][:num_missing]
            if len(in_time) < num_missing:
                return None
            chosen.update((group.group_id, group) for group in in_time)
    for group in liked:
        if len(chosen) >= batch_size:
            break
        chosen.setdefault(group.group_id, group)
    return [chosen[group_id] for group_id in sorted(chosen)]


def length_bias(
    batch: Sequence[Group], left: Iterable[Group], aborted: Sequence[int] = ()
) -> dict[str, float]:
    """The bias of batches towards short groups, because groups that end late tend to be long.

    Overtaken are the open groups that were admitted before the youngest of the batch; `aborted` are the
    response tokens of the trajectories that rollout.abort_staleness dropped since the batch before.
    `length_bias` is the batch's mean response tokens over that of batch, overtaken and aborted together,
    minus 1: negative when the batch holds the short ones. The overtaken still grow, and the aborted would
    have, so the true bias is at least as large.
    """
    youngest = max(group.group_id for group in batch)
    overtaken = [g for g in left if g.group_id < youngest and g.state is GroupState.OPEN]
    lengths = [t.num_sampled_in_all() for group in batch for t in group.trajectories]
    so_far = [t.num_sampled_in_all() for group in overtaken for t in group.trajectories]
    both = statistics.fmean([*lengths, *so_far, *aborted])
    return {
        "overtaken_groups": len(overtaken),
        "overtaken_tokens_mean": statistics.fmean(so_far) if so_far else 0.0,
        "aborted_trajectories": len(aborted),
        "aborted_tokens_mean": statistics.fmean(aborted) if aborted else 0.0,
        "length_bias": statistics.fmean(lengths) / both - 1.0 if both else 0.0,
    }
