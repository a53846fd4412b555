"""Which sequences go into which micro-batch of which rank: equal work for all ranks, within a token budget.

A rank's step takes as long as its floating-point operations, and the slowest rank's counts: tokens alone do
not tell, because a token deep in a long response looks at more keys. Groups that share a prompt are kept
together as far as that leaves the ranks equal: the smaller the bundles, the more equal the ranks, and the
more prompts are computed again. Of several sizes the one wins whose fullest rank has least to do.
Every rank computes the same plan.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from asyncrl.model.flops import pass_flops
from asyncrl.model.shape import ModelShape
from asyncrl.records import ScoredSequence, root_id
from asyncrl.trainer.packing.columns import Column, prompt_values
from asyncrl.trainer.packing.prefix_tree import num_common, sort_key

PARTS = (1, 2, 4, 8, 16)
"""Bundles of up to one n-th of a micro-batch's token budget, by n."""
FIXED_SHARE = 0.02
"""Cost of one more micro-batch, as a share of a full one: kernels are launched, and the gradients of all
weights are read and written once more. An estimate."""

Plan = list[list[list[int]]]
"""[rank][micro-batch] -> indices of sequences."""
Cost = Callable[..., float]
"""(num_tokens, num_targets, num_looks) -> floating-point operations."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Sequences that share a prompt and a micro-batch, with their branches."""

    indices: tuple[int, ...]
    num_tokens: int
    """Packed tokens, by themselves: a micro-batch may have fewer, where prompts begin alike."""
    prompt: int = 0
    """Number of the prompt."""
    prompt_tokens: int = 0
    """Packed tokens that it does without where its prompt is packed already."""
    cost: float = 0.0
    prompt_cost: float = 0.0


@dataclass(slots=True)
class _Run:
    """A bundle in the making, without its prompt."""

    indices: list[int] = field(default_factory=list)
    num_tokens: int = 0
    num_targets: int = 0
    num_looks: float = 0.0


@dataclass(slots=True)
class _Bin:
    """A micro-batch, or all of a rank."""

    num_tokens: int = 0
    cost: float = 0.0
    bundles: list[Bundle] = field(default_factory=list)
    prompts: set[int] = field(default_factory=set)

    def has_room(self, bundle: Bundle, limit: int) -> bool:
        """Whether the bundle fits; one longer than the limit gets a bin of its own."""
        known = bundle.prompt_tokens * (bundle.prompt in self.prompts)
        return not self.bundles or self.num_tokens + bundle.num_tokens - known <= limit

    def add(self, bundle: Bundle) -> None:
        is_known = bundle.prompt in self.prompts
        self.num_tokens += bundle.num_tokens - is_known * bundle.prompt_tokens
        self.cost += bundle.cost - is_known * bundle.prompt_cost
        self.bundles.append(bundle)
        self.prompts.add(bundle.prompt)


def plan_micro_batches(
    sequences: list[ScoredSequence],
    *,
    budget_tokens: int,
    num_ranks: int,
    multiple: int = 1,
    shape: ModelShape | None = None,
    columns: Sequence[Column] = (),
) -> Plan:
    """Every rank gets the same number of micro-batches, a multiple of `multiple`; some are empty where there
    are fewer bundles. Work is counted for a model of `shape`; without one, in tokens. Prompts with other
    values of `columns` are others."""
    cost: Cost = _tokens if shape is None else partial(pass_flops, shape)
    best: tuple[float, Plan] | None = None
    sizes = sorted({max(1, budget_tokens // parts) for parts in PARTS}, reverse=True)
    known: list[Bundle] | None = None
    for size in sizes:
        bundles = make_bundles(sequences, max_tokens=size, cost=cost, columns=columns)
        if bundles == known:
            continue
        known = bundles
        ranks = _divide(bundles, budget_tokens, num_ranks, multiple)
        per_token = sum(bundle.cost for bundle in bundles) / max(1, sum(b.num_tokens for b in bundles))
        fullest = max(sum(part.cost for part in rank) for rank in ranks)
        fullest += FIXED_SHARE * len(ranks[0]) * budget_tokens * per_token
        if best is None or fullest < best[0]:
            plan = [[[i for b in part.bundles for i in b.indices] for part in rank] for rank in ranks]
            best = fullest, plan
    assert best is not None
    return best[1]


def make_bundles(
    sequences: list[ScoredSequence],
    *,
    max_tokens: int,
    cost: Cost | None = None,
    columns: Sequence[Column] = (),
) -> list[Bundle]:
    """Groups trajectories by prompt, split where one would not fit into `max_tokens`; a trajectory and its
    branches are never apart. The largest comes first."""
    cost = cost or _tokens
    lines_of: dict[str, list[int]] = defaultdict(list)
    for i, sequence in enumerate(sequences):
        lines_of[root_id(sequence.sequence_id)].append(i)
    by_prompt: dict[tuple[tuple[int, ...], tuple[bytes, ...]], list[list[int]]] = defaultdict(list)
    for lines in lines_of.values():
        first = sequences[lines[0]]
        by_prompt[tuple(first.prompt_tokens), prompt_values(first, columns)].append(lines)
    bundles: list[Bundle] = []
    for number, ((prompt, _), trajectories) in enumerate(by_prompt.items()):
        size, runs, last = len(prompt), list[_Run](), np.empty(0, np.int64)
        # What two responses share, all between them in this order share too.
        for lines in sorted(trajectories, key=lambda lines: sort_key(sequences[lines[0]].response_tokens)):
            inputs = np.asarray(sequences[lines[0]].response_tokens, np.int64)[:-1]
            extra = len(inputs) - num_common(last, inputs)
            branches = _num_branched([sequences[i] for i in lines])
            if not runs or size + runs[-1].num_tokens + extra + branches > max_tokens:
                runs.append(_Run())
                extra = len(inputs)
            run, last = runs[-1], inputs
            run.indices += lines
            run.num_tokens += extra + branches
            run.num_targets += sum(sequences[i].num_sampled() for i in lines)
            # Those of a branch are taken for tokens at the end, too.
            run.num_looks += (extra + branches) * (size + len(inputs) - (extra - 1) / 2)
        of_prompt = cost(num_tokens=size, num_targets=0, num_looks=size * (size + 1) / 2)
        for run in runs:
            own = cost(num_tokens=run.num_tokens, num_targets=run.num_targets, num_looks=run.num_looks)
            indices, num_tokens = tuple(run.indices), size + run.num_tokens
            bundles.append(Bundle(indices, num_tokens, number, size, of_prompt + own, of_prompt))
    return sorted(bundles, key=lambda bundle: (-bundle.cost, bundle.indices))


def _tokens(*, num_tokens: int, num_targets: int, num_looks: float) -> float:
    return float(num_tokens)


def _divide(bundles: list[Bundle], budget: int, num_ranks: int, multiple: int) -> list[list[_Bin]]:
    """[rank][micro-batch], as few of them as fit."""
    prompts = {bundle.prompt: bundle.prompt_tokens for bundle in bundles}
    needed = sum(bundle.num_tokens - bundle.prompt_tokens for bundle in bundles) + sum(prompts.values())
    count = max(1, int(np.ceil(needed / budget / num_ranks / multiple))) * multiple
    while True:
        ranks = _deal(bundles, num_ranks, count * budget)
        if ranks is not None:
            parts = [
                _deal(rank.bundles, count, budget) or _fill(rank.bundles, count, budget) for rank in ranks
            ]
            if all(part is not None for part in parts):
                return [part for part in parts if part is not None]
        count += multiple


def _deal(bundles: Sequence[Bundle], count: int, limit: int) -> list[_Bin] | None:
    """Each bundle, the costliest first, into the bin with least to do that has room; None where none has."""
    bins = [_Bin() for _ in range(count)]
    idlest = [(0.0, i) for i in range(count)]
    for bundle in bundles:
        full = []
        while idlest and not bins[idlest[0][1]].has_room(bundle, limit):
            full.append(heapq.heappop(idlest))
        if not idlest:
            return None
        _, i = heapq.heappop(idlest)
        bins[i].add(bundle)
        for entry in [(bins[i].cost, i), *full]:
            heapq.heappush(idlest, entry)
    return bins


def _fill(bundles: Sequence[Bundle], count: int, limit: int) -> list[_Bin] | None:
    """Each bundle, the largest first, into the fullest bin that has room, one with its prompt before others;
    None where none has."""
    bins = [_Bin() for _ in range(count)]
    for bundle in sorted(bundles, key=lambda bundle: -bundle.num_tokens):
        roomy = [each for each in bins if each.has_room(bundle, limit)]
        if not roomy:
            return None
        max(roomy, key=lambda each: (bundle.prompt in each.prompts, each.num_tokens)).add(bundle)
    return bins


def _num_branched(lines: Sequence[ScoredSequence]) -> int:
    """Packed tokens that the branches of a trajectory add to its own."""
    if len(lines) == 1:
        return 0
    parts = [(line.prompt_tokens, line.response_tokens[:-1]) for line in lines]
    tokens = [np.concatenate([np.asarray(part, np.int64) for part in own]) for own in parts]
    return sum(
        len(own) - max(num_common(other, own) for other in tokens[:i])
        for i, own in enumerate(tokens[1:], start=1)
    )
