"""Whether a batch has of its teacher what the recipe says, and nothing that would break a loss."""

import numpy as np

from asyncrl.errors import InputError
from asyncrl.model.top_tokens import top_size, unpack_top
from asyncrl.model.unsampled import Unsampled
from asyncrl.recipe.sections.teacher import Teacher
from asyncrl.records import Batch, ScoredSequence

_START_OVER = "To start over, set run_folder (or name) to a new one."


def check_taught(batch: Batch, teacher: Teacher, unsampled: Unsampled, vocab_size: int) -> None:
    """Raises InputError for a response without the teacher's log-probs of its tokens where the recipe has a
    teacher, and for one with some where it has none; likewise of its likeliest tokens; and where one of them
    has a probability, but the policy none."""
    for sequence in batch.sequences:
        wanted = sequence.num_sampled() if teacher.is_on() else 0
        if len(sequence.teacher_logprobs) != wanted:
            raise InputError(
                f"Step {batch.taken_version + 1} has {len(sequence.teacher_logprobs)} log-probs of a teacher "
                f"for the {sequence.num_sampled()} tokens of response {sequence.sequence_id}, expected "
                f"{wanted}: teacher.path is {'set' if teacher.is_on() else 'not set'}. {_START_OVER}"
            )
        _check_top(sequence, batch.taken_version + 1, teacher.top_k or 0, unsampled, vocab_size)


def _check_top(
    sequence: ScoredSequence, step: int, top_k: int, unsampled: Unsampled, vocab_size: int
) -> None:
    where = f"Step {step} has at the tokens of response {sequence.sequence_id}"
    size = top_size(sequence.teacher_top, sequence.num_sampled())
    if size != top_k:
        raise InputError(
            f"{where} the teacher's {size} likeliest tokens, expected {top_k} (teacher.top_k). {_START_OVER}"
        )
    if not size:
        return
    ids, logprobs = unpack_top(sequence.teacher_top, sequence.num_sampled())
    is_wrong = (ids < 0) | (ids >= vocab_size) | np.isin(ids, unsampled.ids)
    is_wrong = is_wrong & (logprobs > -np.inf) | np.isnan(logprobs)
    if is_wrong.any():
        row, column = np.argwhere(is_wrong)[0]
        raise InputError(
            f"{where} a likeliest token {ids[row, column]} of the teacher with the log-prob "
            f"{logprobs[row, column]:g}, but the policy never samples it, or that is no number. {_START_OVER}"
        )
