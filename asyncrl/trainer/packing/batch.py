"""From a batch of sequences to packed micro-batches: which sequence goes where, and the tensors.

Every rank computes the same plan from the same batch and packs its own share. What sequences have in common
from their start is packed, and so computed, once per micro-batch (`prefix_tree`). Nothing is truncated: what
is longer than the token budget gets a micro-batch of its own.

Shapes: P packed tokens, T sampled response tokens, K distinct predictions of them, N trajectories of one
micro-batch. Observed response tokens are packed as inputs and nothing else. The branches of a trajectory,
each a sequence of its own here, stay together: what is summed over a sequence is summed over all of them.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, groupby, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from asyncrl.errors import InputError
from asyncrl.model.flops import pass_flops
from asyncrl.model.layout import ONE_PROCESS, Layout
from asyncrl.model.shape import ModelShape
from asyncrl.model.unsampled import Unsampled
from asyncrl.records import Batch, PolicyVersion, ScoredSequence, root_id
from asyncrl.trainer.packing.attention import PackedSequences, describe_pack
from asyncrl.trainer.packing.columns import (
    Column,
    InputColumn,
    PredictionColumn,
    PredictionTerm,
    ReadColumns,
    TokenColumn,
    input_symbols,
    on_gpu,
    present,
    told_apart,
)
from asyncrl.trainer.packing.division import plan_micro_batches
from asyncrl.trainer.packing.limits import Rows
from asyncrl.trainer.packing.prefix_tree import PackedTree, pack_tree


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward-backward."""

    tokens: Tensor
    """[P] int64."""
    sequences: PackedSequences
    predicting: Tensor
    """[T] int64, the packed position whose output predicts each response token."""
    targets: Tensor
    """[T] int64, the sampled response tokens."""
    distinct: Tensor
    """[K] int64 into T: of response tokens that have the same past and are equal, one."""
    copies: Tensor
    """[T] int64 into K: the prediction that each response token is."""
    behavior: Tensor
    """[T] float32 log-probs as sampled; may hold non-finite values."""
    advantages: Tensor
    """[T] float32."""
    lags: Tensor
    """[T] int64, trainer version - version that sampled the token."""
    are_continued: Tensor
    """[T] bool, sampled over keys and values of an older version."""
    sequence_ids: Tensor
    """[T] int64, 0 to N - 1, ascending: the trajectory's, for its branches too."""
    line_ids: Tensor
    """[T] int64, ascending: the same for each branch by itself, whose tokens follow each other."""
    names: tuple[str, ...] = ()
    """[N] ids of the trajectories."""
    version: PolicyVersion = 0
    """The trainer's."""
    finishes: tuple[str, ...] = ()
    """[N] `ScoredSequence.finish`."""
    sources: tuple[str, ...] = ()
    """[N] `ScoredSequence.source`."""
    lines: tuple[str, ...] = ()
    """`ScoredSequence.sequence_id` by line id."""
    teaches: bool = True
    """Whether its loss may have a gradient."""
    is_masked: Tensor | None = None
    """[T] bool, tokens of sequences that the losses leave out as a whole; None where there are none."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """[T] float32 of the columns of tokens that a sequence has, by name."""
    terms: Mapping[str, PredictionTerm] = field(default_factory=dict)
    """Terms of the columns of predictions, by name; the model has an output for each."""

    def counted(self, mask_staleness: int | None) -> Tensor:
        """[T] bool, tokens that the losses count: their log-prob is a number, they are not staler, and their
        sequence is not masked."""
        is_counted = self.behavior.isfinite()
        if mask_staleness is not None:
            is_counted = is_counted & (self.lags <= mask_staleness)
        return is_counted if self.is_masked is None else is_counted & ~self.is_masked

    def flops(self, shape: ModelShape, *, trains_matrices: bool = True) -> float:
        """Floating-point operations of one forward and backward through a model of `shape`."""
        return pass_flops(
            shape,
            num_tokens=len(self.tokens),
            num_targets=len(self.distinct),
            num_looks=float((self.sequences.positions + 1).sum()),
            trains_matrices=trains_matrices,
        )

    def without_inputs(self) -> "MicroBatch":
        """The same for a model whose layers are told nothing."""
        return (
            replace(self, sequences=replace(self.sequences, columns={})) if self.sequences.columns else self
        )

    def unrestricted(self) -> "MicroBatch":
        """The same with log-probs over all tokens."""
        terms = {name: term for name, term in self.terms.items() if not term.restricts}
        return self if len(terms) == len(self.terms) else replace(self, terms=terms)

    def whole(self, outputs: tuple[Tensor, ...]) -> Tensor | None:
        """[T] log-probs over all tokens of a model's outputs, where a term restricts the first ones."""
        found = zip(self.terms.values(), outputs[2:], strict=True)
        return next((output for term, output in found if term.restricts), None)

    def output(self, name: str, outputs: tuple[Tensor, ...]) -> Tensor:
        """[T] output of the term of that name."""
        return outputs[2 + list(self.terms).index(name)]

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on `device`; itself on a CPU."""
        return self if device.type == "cpu" else _moved(self, device)


def check_sampled(batch: Batch, unsampled: Unsampled) -> None:
    """Raises InputError for a response with a token that is never sampled: its log-prob is no number."""
    ids = np.asarray(unsampled.ids, np.int64)
    for sequence in batch.sequences:
        sampled = np.asarray(sequence.sampled_tokens(), np.int64)
        if (found := sampled[np.isin(sampled, ids)]).size:
            token = int(found[0])
            raise InputError(
                f"Step {batch.taken_version + 1} has the token {token} ({unsampled.name(token)}) in response "
                f"{sequence.sequence_id}, but it is never sampled: a server without the run's mask wrote it. "
                f"To start over, set run_folder (or name) to a new one."
            )


RecordOf = TypeVar("RecordOf", bound=MicroBatch | PackedSequences | Rows)


def mini_batches(batch: Batch, count: int, *, seed: int, order: str = "groups") -> list[Batch]:
    """`count` parts of a batch with nearly equal numbers of sequences; fewer for fewer sequences.

    `order` is a choice of trainer.mini_batch_order. Shuffled ones depend on `seed` and the version alone: no
    part always gets what was generated last, or the repeated groups. One part keeps the batch's order.
    """
    trajectories = by_trajectory(batch.sequences)
    size = len(trajectories)
    count = max(1, min(count, size))
    if count > 1 and order != "batch":
        groups = [[lines] for lines in trajectories]
        if order == "groups":
            groups = [list(group) for _, group in groupby(trajectories, key=group_of)]
        random.Random(f"{seed}:{batch.taken_version}").shuffle(groups)
        trajectories = list(chain.from_iterable(groups))
    ends = [size * part // count for part in range(count + 1)]
    parts = [list(chain.from_iterable(trajectories[a:b])) for a, b in pairwise(ends)]
    return [replace(batch, sequences=part) for part in parts]


def by_trajectory(sequences: Sequence[ScoredSequence]) -> list[list[ScoredSequence]]:
    """Each trajectory with its branches, in the order of their first ones."""
    found: dict[str, list[ScoredSequence]] = defaultdict(list)
    for sequence in sequences:
        found[root_id(sequence.sequence_id)].append(sequence)
    return list(found.values())


def rank_micro_batches(
    batch: Batch,
    *,
    budget_tokens: int,
    rank: int,
    num_ranks: int,
    layout: Layout = ONE_PROCESS,
    kernel: str = "sdpa",
    teaches: Callable[[ScoredSequence], bool] = lambda sequence: True,
    shape: ModelShape | None = None,
    columns: ReadColumns | None = None,
) -> list[MicroBatch]:
    """The micro-batches of the data-parallel `rank`; all ranks that share its model compute the same.

    Those of sequences that teach come first, on every rank as many and at least one. `kernel` is the one of
    attention for which sequences are laid out, `shape` the model whose work is divided, and `columns` are
    those that are read.
    """
    columns = columns or {}
    taught: list[ScoredSequence] = []
    silent: list[ScoredSequence] = []
    for lines in by_trajectory(batch.sequences):
        (taught if any(map(teaches, lines)) else silent).extend(lines)
    micro_batches = []
    for sequences in (taught, silent) if silent else (taught,):
        plan = plan_micro_batches(
            sequences,
            budget_tokens=budget_tokens,
            num_ranks=num_ranks,
            multiple=layout.micro_batch_multiple(),
            shape=shape,
            columns=present(sequences, columns),
        )
        micro_batches += [
            make_micro_batch(
                [sequences[i] for i in chosen],
                batch.taken_version,
                token_multiple=layout.token_multiple(),
                kernel=kernel,
                teaches=sequences is taught,
                columns=columns,
            )
            for chosen in plan[rank]
        ]
    return micro_batches


def group_of(lines: Sequence[ScoredSequence]) -> str:
    """The group of a trajectory, by its id (`replay.group.trajectory_id`). Contexts do not tell: each sample
    of an agent may begin with another one."""
    name = root_id(lines[0].sequence_id)
    return name.rpartition("-")[0] or name


def make_micro_batch(
    sequences: list[ScoredSequence],
    version: PolicyVersion,
    *,
    token_multiple: int = 1,
    kernel: str = "sdpa",
    teaches: bool = True,
    columns: ReadColumns | None = None,
) -> MicroBatch:
    """Packs `sequences`; none make a pack without targets. Columns that are not in `columns` are left out."""
    sequences = sequences or [ScoredSequence("", [0], [], [], [], [], 0.0, 0.0)]
    trajectories = by_trajectory(sequences)
    sequences = list(chain.from_iterable(trajectories))
    found_columns = present(sequences, columns or {})
    tree = pack_tree(sequences, input_symbols(sequences, found_columns))
    tokens, rows, positions = tree.tokens, tree.rows, tree.positions
    if num_missing := -len(tokens) % token_multiple:
        # A sequence of its own that predicts nothing, so that no other sees it.
        rows = [*rows, np.arange(len(tokens), len(tokens) + num_missing)]
        tokens = np.concatenate([tokens, np.zeros(num_missing, np.int64)])
        positions = np.concatenate([positions, np.arange(num_missing)])
    num_responses = np.fromiter((s.num_sampled() for s in sequences), np.int64, len(sequences))
    num_targets = int(num_responses.sum())
    line_ids = np.repeat(np.arange(len(sequences)), num_responses)
    of_lines = np.repeat(np.arange(len(trajectories)), [len(lines) for lines in trajectories])
    runs = [run for s in sequences for run in s.advantage_runs()]
    advantages = np.repeat(
        np.fromiter((advantage for _, advantage in runs), np.float32, len(runs)),
        np.fromiter((count for count, _ in runs), np.int64, len(runs)),
    )
    versions = _flatten([s.token_versions for s in sequences], np.int64, num_targets)
    is_masked = np.repeat([sequence.is_masked for sequence in sequences], num_responses)
    targets = _flatten([s.sampled_tokens() for s in sequences], np.int64, num_targets)
    distinct, copies, terms = _terms(sequences, tree, targets, found_columns)
    described = describe_pack(rows, positions, kernel=kernel)
    num_predicted = torch.from_numpy(np.bincount(tree.predicting, minlength=len(tokens)))
    described.columns = {
        each.name: each.packed(sequences, tree, num_predicted)
        for each in found_columns
        if isinstance(each, InputColumn)
    }
    return MicroBatch(
        tokens=torch.from_numpy(tokens),
        sequences=described,
        predicting=torch.from_numpy(tree.predicting),
        targets=torch.from_numpy(targets),
        distinct=torch.from_numpy(distinct),
        copies=torch.from_numpy(copies),
        behavior=torch.from_numpy(
            _flatten([s.behavior_logprobs for s in sequences], np.float32, num_targets)
        ),
        advantages=torch.from_numpy(advantages),
        lags=torch.from_numpy(version - versions),
        are_continued=torch.from_numpy(_flatten([s.are_continued for s in sequences], np.bool_, num_targets)),
        sequence_ids=torch.from_numpy(of_lines[line_ids]),
        line_ids=torch.from_numpy(line_ids),
        names=tuple(root_id(lines[0].sequence_id) for lines in trajectories),
        version=version,
        finishes=tuple(lines[0].finish for lines in trajectories),
        sources=tuple(lines[0].source for lines in trajectories),
        lines=tuple(sequence.sequence_id for sequence in sequences),
        teaches=teaches,
        is_masked=torch.from_numpy(is_masked) if is_masked.any() else None,
        columns={
            each.name: each.packed(sequences) for each in found_columns if isinstance(each, TokenColumn)
        },
        terms=terms,
    )


def _terms(
    sequences: Sequence[ScoredSequence], tree: PackedTree, targets: np.ndarray, columns: Sequence[Column]
) -> tuple[np.ndarray, np.ndarray, dict[str, PredictionTerm]]:
    """`distinct` and `copies` of a micro-batch, and its terms."""
    known = [
        (each, list(chain.from_iterable(map(each.values, sequences))))
        for each in columns
        if isinstance(each, PredictionColumn)
    ]
    if not known:
        return tree.distinct, tree.copies, {}
    distinct, copies = told_apart(tree.copies, [own for _, own in known])
    terms = {each.name: each.term([own[i] for i in distinct], targets[distinct]) for each, own in known}
    return distinct, copies, terms


def _flatten(parts: list[Sequence[Any]], dtype: type, count: int) -> np.ndarray:
    flat = np.concatenate([np.asarray(part, dtype) for part in parts])
    assert len(flat) == count, (len(flat), count)
    return flat


def _moved(record: RecordOf, device: torch.device) -> RecordOf:
    """A copy whose tensors are on `device`."""
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    moved: dict[str, Any] = {
        name: on_gpu(value, device) if torch.is_tensor(value) else _moved(value, device)
        for name, value in values.items()
        if torch.is_tensor(value) or isinstance(value, PackedSequences | Rows)
    }
    if isinstance(record, MicroBatch):
        moved["columns"] = {name: on_gpu(own, device) for name, own in record.columns.items()}
        moved["terms"] = {name: term.to(device) for name, term in record.terms.items()}
    return replace(record, **moved)
