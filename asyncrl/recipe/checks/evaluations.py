"""Checks of held-out evaluations, and of the teacher against the sections that sample, judge and train."""

import itertools

from asyncrl.recipe.algorithm import Algorithm
from asyncrl.recipe.sections.agent import Agent
from asyncrl.recipe.sections.data import Data
from asyncrl.recipe.sections.evaluation import Evaluation
from asyncrl.recipe.sections.model import Model
from asyncrl.recipe.sections.rollout import Rollout
from asyncrl.recipe.sections.teacher import Teacher
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


def check_teacher(teacher: Teacher, algorithm: Algorithm, rollout: Rollout, data: Data, agent: Agent) -> None:
    """Raises ValueError where a term beside the teacher's would take its place or mean something else."""
    if not teacher.is_on():
        return
    if rollout.is_truncated():
        raise ValueError(
            "teacher.path is set but rollout.top_k, top_p or min_p is too: log-probs of the policy would be "
            "over the tokens that were kept, those of the teacher over all, and their difference no KL. "
            "Leave rollout.top_k, top_p and min_p out."
        )
    if algorithm.needs_critic():
        raise ValueError(
            "teacher.path is set but algorithm.advantage is gae: the critic gives each token an advantage "
            "of its own in place of the teacher's. Set algorithm.advantage to one without a critic, such as "
            "grpo."
        )
    if not teacher.is_alone():
        return
    if algorithm.needs_greedy():
        raise ValueError(
            f"teacher.with_reward is false but algorithm.advantage is {algorithm.advantage.name}, whose "
            "greedy responses are generated for their reward. Set teacher.with_reward to true, or "
            "algorithm.advantage to grpo, which nothing reads then."
        )
    judged = [
        ("algorithm.nll_coefficient", bool(algorithm.nll_coefficient)),
        ("rollout.pilot_samples", rollout.pilot_samples is not None),
        ("data.selection", data.selection.by != "uniform"),
        ("data.mixture.rebalance", data.mixture.rebalance != "never"),
        ("agent.verdict", agent.verdict == "branch"),
        ("agent.roles", bool(agent.roles)),
    ]
    for key, is_set in judged:
        if is_set:
            raise ValueError(
                f"{key} is set but teacher.with_reward is false: nothing judges training responses. Set "
                f"teacher.with_reward to true, or leave {key} out."
            )
