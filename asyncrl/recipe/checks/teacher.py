"""Checks of the teacher against the sections that sample, judge and train."""

from asyncrl.recipe.algorithm import Algorithm
from asyncrl.recipe.sections.agent import Agent
from asyncrl.recipe.sections.data import Data
from asyncrl.recipe.sections.rollout import Rollout
from asyncrl.recipe.sections.teacher import Teacher


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
    ]
    for key, is_set in judged:
        if is_set:
            raise ValueError(
                f"{key} is set but teacher.with_reward is false: nothing judges training responses. Set "
                f"teacher.with_reward to true, or leave {key} out."
            )
