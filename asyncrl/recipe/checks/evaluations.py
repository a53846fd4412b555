"""Checks of held-out evaluations."""

import itertools

from asyncrl.recipe.sections.agent import Agent
from asyncrl.recipe.sections.data import Data
from asyncrl.recipe.sections.evaluation import Evaluation
from asyncrl.recipe.sections.model import Model
from asyncrl.recipe.sections.trainer import Trainer
from asyncrl.recipe.sections.turns import Turns
from asyncrl.recipe.sources import check_shared_tasks


def check_evaluation(
    evaluation: Evaluation, model: Model, turns: Turns, agent: Agent, data: Data, trainer: Trainer
) -> None:
    evaluation.check_all(model.context_tokens)
    gives = "turns.environment" if turns.environment is not None else None
    gives = "agent.may_give_verdict" if agent.may_give_verdict else gives
    if evaluation.has_grader() and gives is not None:
        raise ValueError(
            f"evaluation.verifier, or that of a set, is set but so is {gives}, and the verdict from "
            f"there is the one that counts. Remove evaluation.verifier, or {gives}."
        )
    for trained, each in itertools.product(data.train_sources(), evaluation.sets):
        for asked in each.heldout_sources():
            check_shared_tasks(trained, asked, f"evaluation.sets {each.title()}")
    if evaluation.stop_at_accuracy is not None and not evaluation.every_steps:
        raise ValueError(
            "evaluation.stop_at_accuracy is set but evaluation.every_steps is 0, so nothing is measured "
            "during training. Set evaluation.every_steps to 1 or more."
        )
    if trainer.keep_best and not evaluation.every_steps:
        raise ValueError(
            "trainer.keep_best is true but evaluation.every_steps is 0, so nothing is evaluated during "
            "training. Set evaluation.every_steps to 1 or more, or trainer.keep_best to false."
        )
    if evaluation.every_steps and data.heldout is None:
        raise ValueError(
            f"evaluation.every_steps is {evaluation.every_steps} but data.heldout is missing. Name a "
            "held-out file in data.heldout, or set evaluation.every_steps to 0."
        )
