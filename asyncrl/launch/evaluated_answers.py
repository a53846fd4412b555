"""Answers that `asyncrl eval` keeps of a model: in which file, and by which settings of its servers."""

import os
from pathlib import Path

from asyncrl.evaluation.kept_answers import KeptAnswers, weights_digest
from asyncrl.journal.kept_answers import AnswerStore
from asyncrl.launch.evaluated_models import EvaluatedModel
from asyncrl.model.dtype import with_dtype
from asyncrl.model.folder import read_shape
from asyncrl.model.unsampled import find_unsampled
from asyncrl.recipe import Recipe
from asyncrl.system.cache import cache_folder
from asyncrl.system.run_files import ANSWERS, RECIPE
from asyncrl.tasks.verifier_cache import VerifierCache


def answers_file(recipe: Recipe) -> Path:
    """In the run folder where there is a run that may be written to, else one for all that the user
    evaluates."""
    folder = recipe.folder()
    is_run = (folder / RECIPE).is_file() and os.access(folder, os.W_OK)
    return (folder if is_run else cache_folder("evaluations")) / ANSWERS


def keep_answers(
    recipe: Recipe, model: EvaluatedModel, verifiers: VerifierCache, store: AnswerStore, *, regrades: bool
) -> KeptAnswers | None:
    """Reads all weights of the model. None where servers of others answer, whose weights are not known.

    Raises InputError."""
    if recipe.serving.servers:
        return None
    is_settled = recipe.model.dtype != "auto"
    section = recipe.model if is_settled else with_dtype(recipe, read_shape(model.folder))
    servers = {
        "dtype": section.dtype,
        "float32_logits": section.float32_logits,
        **({"bitwise_agreement": True} if section.bitwise_agreement else {}),
        "extra_arguments": recipe.serving.extra_arguments,
        "unsampled": str(find_unsampled(model.folder, recipe.rollout.stop_tokens)),
    }
    limits = {"timeout_seconds": recipe.verifying.timeout_seconds}
    return KeptAnswers(store, weights_digest(model.folder), servers, verifiers, limits, regrades)
