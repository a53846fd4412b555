"""The teacher of a run: what its log-probs do to advantages, and its likeliest tokens to the loss."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from asyncrl.algorithms.divergences import teacher_advantages, top_k_forward_kl
from asyncrl.algorithms.inputs import LossInputs
from asyncrl.errors import InputError
from asyncrl.journal.packing import NUMBER_BYTES
from asyncrl.model.column_bytes import TEACHER_LOGPROBS, TEACHER_TOP, top_size, unpack_top
from asyncrl.model.unsampled import Unsampled
from asyncrl.recipe import Recipe
from asyncrl.recipe.sections.stages import Teacher as TeacherKeys
from asyncrl.records import Batch, ScoredSequence
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.columns import Column, TokenColumn
from asyncrl.trainer.packing.terms import TopColumn, TopTokens
from asyncrl.trainer.step.batch_values import Parts
from asyncrl.trainer.step.learner import Learner
from asyncrl.trainer.step.part import MiniBatch, Step, StepPart

_START_OVER = "To start over, set run_folder (or name) to a new one."


class Teacher(StepPart):
    """Advantages and forward KL by a teacher; without one it only refuses a batch that has a teacher's."""

    def __init__(self, learner: Learner, recipe: Recipe) -> None:
        self._section = recipe.teacher
        self._unsampled = learner.unsampled
        self._vocab_size = learner.shape.vocab_size

    def columns(self) -> list[Column]:
        return [TokenColumn(TEACHER_LOGPROBS), TopColumn()]

    def check(self, batch: Batch) -> None:
        check_taught(batch, self._section, self._unsampled, self._vocab_size)

    def teaches(self, sequence: ScoredSequence) -> bool:
        # Each token has an advantage of its own.
        return TEACHER_LOGPROBS in sequence.columns

    def advantages(self, step: Step) -> None:
        step.replace(with_teacher(step.micro_batches(), self._section.coefficient))

    def loss_inputs(self, mini: MiniBatch) -> None:
        if self._section.top_k:
            mini.givens.append(self._forward_kl)

    def _forward_kl(
        self, index: int, micro: MicroBatch, outputs: tuple[Tensor, ...], inputs: LossInputs
    ) -> Mapping[str, Any]:
        top = micro.terms.get(TEACHER_TOP)
        if not isinstance(top, TopTokens):
            return {}
        means = micro.output(TEACHER_TOP, outputs)
        return {
            "forward_kl": top_k_forward_kl(top.logprobs.index_select(0, micro.copies), means),
            "forward_kl_coefficient": self._section.top_k_coefficient,
        }


def with_teacher(parts: Parts, coefficient: float) -> Parts:
    """Advantages plus those of the teacher, last of all: nothing is done to their scale or their mean."""
    return [
        [
            micro
            if TEACHER_LOGPROBS not in micro.columns
            else dataclasses.replace(
                micro,
                advantages=micro.advantages
                + teacher_advantages(micro.behavior, micro.columns[TEACHER_LOGPROBS], coefficient).to(
                    micro.advantages
                ),
            )
            for micro in part
        ]
        for part in parts
    ]


def check_taught(batch: Batch, teacher: TeacherKeys, unsampled: Unsampled, vocab_size: int) -> None:
    """Raises InputError for a response without the teacher's log-probs of its tokens where the recipe has a
    teacher, and for one with some where it has none; likewise of its likeliest tokens; and where one of them
    has a probability, but the policy none."""
    for sequence in batch.sequences:
        wanted = sequence.num_sampled() if teacher.is_on() else 0
        num_scored = len(sequence.columns.get(TEACHER_LOGPROBS, b"")) // NUMBER_BYTES
        if num_scored != wanted:
            raise InputError(
                f"Step {batch.taken_version + 1} has {num_scored} log-probs of a teacher "
                f"for the {sequence.num_sampled()} tokens of response {sequence.sequence_id}, expected "
                f"{wanted}: teacher.path is {'set' if teacher.is_on() else 'not set'}. {_START_OVER}"
            )
        _check_top(sequence, batch.taken_version + 1, teacher.top_k or 0, unsampled, vocab_size)


def _check_top(
    sequence: ScoredSequence, step: int, top_k: int, unsampled: Unsampled, vocab_size: int
) -> None:
    where = f"Step {step} has at the tokens of response {sequence.sequence_id}"
    packed = sequence.columns.get(TEACHER_TOP, b"")
    size = top_size(packed, sequence.num_sampled())
    if size != top_k:
        raise InputError(
            f"{where} the teacher's {size} likeliest tokens, expected {top_k} (teacher.top_k). {_START_OVER}"
        )
    if not size:
        return
    ids, logprobs = unpack_top(packed, sequence.num_sampled())
    is_wrong = (ids < 0) | (ids >= vocab_size) | np.isin(ids, unsampled.ids)
    is_wrong = is_wrong & (logprobs > -np.inf) | np.isnan(logprobs)
    if is_wrong.any():
        row, column = np.argwhere(is_wrong)[0]
        raise InputError(
            f"{where} a likeliest token {ids[row, column]} of the teacher with the log-prob "
            f"{logprobs[row, column]:g}, but the policy never samples it, or that is no number. {_START_OVER}"
        )
