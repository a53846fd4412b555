"""Which objective a stage minimizes, and those of the stages that learn from rows: likelihood, preference.

Terms of the loss that the recipe brings along are here too: what they may see, and faults of theirs, which
all ranks agree on and the first that knows reports.

Shapes: T tokens, L lines (responses), N pairs of one micro-batch.
"""

import dataclasses
import hashlib
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.divergences import dpo, ipo
from asyncrl.algorithms.inputs import LossInputs
from asyncrl.algorithms.losses import LossParts
from asyncrl.algorithms.own_terms import Faults, GradientWatch, describe, own_names
from asyncrl.errors import Diverged, InputError
from asyncrl.model.folder import model_digest
from asyncrl.model.source import model_folder
from asyncrl.recipe import Algorithm, Recipe
from asyncrl.records import Batch, ScoredSequence, root_id
from asyncrl.trainer.network.model import device
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.ranks import ranks
from asyncrl.trainer.step.batch_values import max_over_ranks, sum_over_ranks
from asyncrl.trainer.step.diagnostics import Tally
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.objective import Objective
from asyncrl.trainer.step.part import MiniBatch, StepPart

REPORTED = (
    *("loss", "entropy", "grad_norm", "learning_rate", "optimizer_steps"),
    *("num_tokens", "num_packed_tokens", "nonfinite_tokens"),
)
"""Metrics of a step that are about no sampling and no reward."""
_RECORD = struct.Struct("<16sd")
MEANS = ("dpo_accuracy", "dpo_margin", "dpo_chosen_reward", "dpo_rejected_reward")
"""Columns: the share of pairs with h > 0; beta h; beta (ln policy - ln reference) of either side."""


def make_objective(recipe: Recipe) -> Objective:
    """The objective of a recipe's stage. Raises InputError when a term of its own cannot be loaded."""
    if recipe.stage == "sft":
        return Likelihood(recipe.algorithm)
    if recipe.stage == "dpo":
        return Preference(recipe)
    rollout = recipe.rollout
    return Objective(
        recipe.algorithm, max_new_tokens=rollout.max_new_tokens, mask_staleness=rollout.mask_staleness
    )


class Likelihood(Objective):
    """-log p of each learned token: the targets of a micro-batch; its other tokens are context.

    The mean is over all learned tokens of the batch: sums are divided once by the global count, so that
    neither packing nor the number of ranks changes it.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__(algorithm, max_new_tokens=1)
        self._loss = negative_log_likelihood

    def finished(self, batch: Batch) -> Batch:
        return batch

    def reported(self, metrics: dict[str, float]) -> dict[str, float]:
        kept = {name: metrics[name] for name in REPORTED if name in metrics}
        return kept | {"perplexity": perplexity(metrics["loss"])}

    def teaches(self, sequence: ScoredSequence) -> bool:
        return True

    def inputs(self, micro: MicroBatch, current: Tensor, known: Tensor | None = None) -> LossInputs:
        """No policy sampled the rows: the one in training stands in, and every ratio is 1."""
        inputs = super().inputs(micro, current, known)
        return dataclasses.replace(inputs, behavior=inputs.proximal)


def perplexity(loss: float) -> float:
    """exp of a mean loss per token, in nats; finite for any that is."""
    return math.exp(min(loss, 700.0))


def negative_log_likelihood(inputs: LossInputs) -> LossParts:
    """sum of -log p over the tokens that count, and their number"""
    ones = torch.ones_like(inputs.proximal)
    losses = torch.where(inputs.mask, -inputs.current, torch.zeros_like(inputs.current))
    none = torch.zeros_like(inputs.mask)
    return LossParts(losses.sum(), inputs.mask.sum(), ones, ones, None, none, [])


class Preference(Likelihood):
    """DPO or IPO over the pairs of a batch: a loss per pair of responses, by log-probs of whole responses.

    The two sides of a pair are branches of one trajectory, so they are in one micro-batch, and each rank that
    has it has all of their log-probs. Sums over tokens and the loss are in float64: a response of thousands
    of tokens has a log-prob whose float32 rounding may exceed a pair's margin. The denominator is the number
    of pairs of the batch.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe.algorithm)
        self._section = recipe.dpo
        folder = model_folder(recipe.model)
        digest = model_digest(folder) or "unknown"
        self._known = ReferenceSums(recipe.folder() / "reference" / f"{digest[:16]}.sums")
        self._digests: dict[str, bytes] = {}
        """Digest of each sequence of the batch."""
        self._of_pairs: list[Tensor] = []
        """[1 + len(MEANS)] float64 of each micro-batch since the last report: its pairs, and their sums."""

    def finished(self, batch: Batch) -> Batch:
        self._digests = {each.sequence_id: digest_of(each, batch.temperature) for each in batch.sequences}
        return batch

    def references(
        self, micro_batches: Sequence[MicroBatch], evaluate: Callable[[], list[Tensor]]
    ) -> list[Tensor]:
        """[L] float64 of each micro-batch: log-probs of its responses under the reference, which evaluates
        those that it never has. A call of every rank."""
        self._known.open()
        named = [[self._digests.get(name) for name in micro.lines] for micro in micro_batches]
        lacks = any(each is not None and each not in self._known for part in named for each in part)
        # Ranks whose experts answer each other evaluate together, or not at all.
        if max_over_ranks([torch.tensor([lacks], dtype=torch.float64, device=device())], 1).item():
            own: dict[bytes, float] = {}
            evaluated = evaluate()
            # Empty on all pipeline stages but the last.
            triples = zip(micro_batches, named, evaluated, strict=True) if evaluated else ()
            for micro, digests, logprobs in triples:
                totals = _line_sums(logprobs, micro.to(logprobs.device)).tolist()
                own |= {digest: total for digest, total in zip(digests, totals, strict=True) if digest}
            self._known.add(own)
        found = [[0.0 if digest is None else self._known[digest] for digest in part] for part in named]
        return [torch.tensor(part, dtype=torch.float64, device=device()) for part in found]

    def _minimized(self, micro: MicroBatch, inputs: LossInputs) -> LossParts:
        """`inputs.reference` is [L], as `references` has it."""
        reference = inputs.reference
        assert reference is not None
        section, (chosen, rejected) = self._section, _sides(micro.lines)
        sums, sizes = _line_sums(inputs.current, micro), _line_sums(torch.ones_like(inputs.proximal), micro)
        scale = sizes.clamp(min=1) if section.loss == "ipo" else torch.ones_like(sizes)
        moved = (sums - reference) / scale
        h = moved[chosen] - moved[rejected]
        if section.loss == "ipo":
            losses = ipo(h, beta=section.beta)
        else:
            losses = dpo(h, beta=section.beta, label_smoothing=section.label_smoothing)
        if section.nll_coefficient:
            losses = losses - section.nll_coefficient * sums[chosen] / sizes[chosen]
        rewards = section.beta * moved.detach()
        means = (h.detach() > 0, section.beta * h.detach(), rewards[chosen], rewards[rejected])
        counts = [torch.ones_like(h.detach()), *means]
        self._of_pairs.append(torch.stack([each.double().sum() for each in counts]))
        ones, none = torch.ones_like(inputs.proximal), torch.zeros_like(inputs.mask)
        count = inputs.mask.new_tensor(len(h), dtype=torch.int64)
        return LossParts(losses.sum().float(), count, ones, ones, None, none, [])

    def reported(self, metrics: dict[str, float]) -> dict[str, float]:
        """A call of every rank."""
        total = sum_over_ranks(self._of_pairs, 1 + len(MEANS)).tolist()
        self._of_pairs = []
        found = {name: metrics[name] for name in REPORTED if name in metrics}
        return found | {
            name: each / total[0] for name, each in zip(MEANS, total[1:], strict=True) if total[0]
        }


def _line_sums(values: Tensor, micro: MicroBatch) -> Tensor:
    """[T] -> [L] float64."""
    return torch.zeros(len(micro.lines), dtype=torch.float64, device=values.device).index_add(
        0, micro.line_ids, values.double()
    )


def _sides(lines: Sequence[str]) -> tuple[list[int], list[int]]:
    """Places of the chosen and of the rejected responses, pair after pair: a trajectory and its branch."""
    chosen: list[int] = []
    rejected: list[int] = []
    for name, pair in groupby(range(len(lines)), key=lambda place: root_id(lines[place])):
        places = list(pair)
        if not name:
            continue  # Fills up a micro-batch that has nothing.
        assert len(places) == 2, f"{name} has {len(places)} responses, and a pair has two"
        chosen.append(places[0])
        rejected.append(places[1])
    return chosen, rejected


def digest_of(sequence: ScoredSequence, temperature: float) -> bytes:
    """16 bytes that tell its tokens and which of them count."""
    spans = [place for span in sequence.observed for place in span]
    parts = (sequence.prompt_tokens, sequence.response_tokens, spans)
    found = hashlib.sha256(repr(temperature).encode())
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + np.asarray(part, "<i8").tobytes())
    return found.digest()[:16]


class ReferenceSums:
    """Log-probs of whole responses under the reference, each computed once and kept in the run folder.

    A file per reference, by the digest of its weights: RUN/reference/<digest>.sums, records of 16 bytes, the
    digest of a prompt and its response, and a float64. It is only ever appended to; half a record at its end,
    which a crash may leave, is cut off. Identical on every rank; only rank 0 opens the file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._sums: dict[bytes, float] = {}
        self._is_open = False

    def open(self) -> None:
        """Reads what earlier processes have found, once. A call of every rank."""
        if not self._is_open:
            self._sums = ranks.broadcast(self._read() if ranks.is_first() else None)
            self._is_open = True

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._sums

    def __getitem__(self, digest: bytes) -> float:
        return self._sums[digest]

    def add(self, own: Mapping[bytes, float]) -> None:
        """Makes known to all ranks what each has computed. A call of every rank."""
        parts = ranks.gather_to_first(dict(own))
        new = {digest: total for part in parts for digest, total in part.items() if digest not in self}
        if ranks.is_first() and new:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(b"".join(_RECORD.pack(digest, total) for digest, total in new.items()))
        self._sums |= ranks.broadcast(new if ranks.is_first() else None)

    def _read(self) -> dict[bytes, float]:
        if not self._file.is_file():
            return {}
        content = self._file.read_bytes()
        whole = len(content) - len(content) % _RECORD.size
        if whole < len(content):
            with self._file.open("ab") as file:
                file.truncate(whole)
        return dict(_RECORD.iter_unpack(content[:whole]))


Found = Sequence[tuple[Faults, Sequence[str]]]
"""Faults of each micro-batch of this rank, with the names of its sequences."""


class OwnTerms(StepPart):
    """Names the term of the recipe's own that made a step fail, with its trajectory.

    Raises InputError where a term gave a value that is not a number, before the optimizer; and where the
    gradient of an own surrogate is not finite, which is not a matter of the loss scale.
    """

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._algorithm = recipe.algorithm
        self._has_loss_terms = recipe.algorithm.has_own_loss_terms()
        self._gradients: GradientWatch | None = None

    def loss_inputs(self, mini: MiniBatch) -> None:
        if self._has_loss_terms:
            self._gradients = GradientWatch()
            mini.givens.append(self._origins)

    def _origins(
        self, index: int, micro: MicroBatch, outputs: tuple[Tensor, ...], inputs: LossInputs
    ) -> Mapping[str, Any]:
        """Origins of tokens and sequences, which own terms may read."""
        assert self._gradients is not None
        what = f"algorithm.surrogate {self._algorithm.surrogate.name} has a loss with the gradient"
        self._gradients.watch(what, inputs, micro.names)
        return {
            "lags": micro.lags,
            "versions": micro.version - micro.lags,
            "finishes": micro.finishes,
            "sources": micro.sources,
        }

    def accumulated(self, mini: MiniBatch, tally: Tally) -> None:
        if self._has_loss_terms and tally.num_faults():
            raise_first([(fault, micro.names) for micro, kept in mini.kept for fault in kept.faults])

    def stepped(self, norm: float | None) -> None:
        if norm is None and self._gradients:
            raise_first(self._gradients.found)

    def diverged(self, error: Diverged) -> None:
        explain_divergence(error, self._algorithm, self._gradients.found if self._gradients else [])


def raise_first(found: Found) -> None:
    """Raises InputError for the first rank's first fault, on every rank. A call of every rank."""
    for words in filter(None, ranks.gather(describe(found))):
        raise InputError(
            f"{words}; expected finite numbers, of a weight at least 0. Bound log-ratios before exp "
            f"(asyncrl.algorithms.inputs.bounded_ratio). Fix it and run the same command again: the run "
            f"resumes from its last checkpoint with the same batches."
        )


def explain_divergence(error: Diverged, algorithm: Algorithm, gradients: Found) -> None:
    """Raises what is known beyond `error`: InputError where the gradient of an own surrogate's loss is not
    finite, Diverged with the names of the own terms. A call of every rank; returns where there are none."""
    names = own_names(algorithm)
    if not names:
        return
    raise_first(gradients)
    raise Diverged(
        f"{error} The recipe's own terms make this loss: look at {', '.join(names)} first."
    ) from error
