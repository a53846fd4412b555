"""Rewards and advantages made of verdicts: a reward shaped for length, credits at tokens of a trajectory,
scores of branches, and the advantages of a group whose trajectories have such rewards inside."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from asyncrl.algorithms.advantages import Advantage
from asyncrl.algorithms.turns import (
    LineReward,
    TurnRewards,
    as_runs,
    credits_by_turn,
    line_advantages,
    mean_reward,
    turns,
)
from asyncrl.journal.packing import split_credits
from asyncrl.model.token_text import token_counts
from asyncrl.model.tokenizer import TextCodec
from asyncrl.recipe import Algorithm
from asyncrl.records import Credits, Finish, Observed, Score, Trajectory, TurnAdvantages
from asyncrl.rollout.complete import Graded, Worth, whole_worths
from asyncrl.rollout.request_rules import Limits
from verifiers.format import soft_overlong
from verifiers.verdict import Outcome, weighted_sum


def credits_of(score: Score, trajectory: Trajectory, codec: TextCodec) -> Credits:
    """Rewards by place among the sampled tokens; none for a fault. The score's rewards fit the trajectory
    (`grade.with_fitting_credits`)."""
    if score.reward is None:
        return []
    found = defaultdict[int, list[float]](list)
    if score.turn_rewards:
        ends = accumulate(trajectory.turn_lengths())
        for end, reward in zip(ends, score.turn_rewards, strict=True):
            found[end - 1].append(reward)
    for end, reward in _of_environment(trajectory):
        found[end - 1].append(reward)
    if score.spans:
        first, answer = trajectory.answer_place()
        lengths = token_counts(codec.exact_text, answer, [end for _, end, _ in score.spans])
        for _, end, reward in score.spans:
            found[first + lengths[end] - 1].append(reward)
    sums = ((place, weighted_sum([(1.0, reward) for reward in found[place]])) for place in sorted(found))
    return [(place, reward) for place, reward in sums if reward]


def total_reward(reward: float, credits: Credits) -> float:
    """The reward of an outcome and what parts of the trajectory earned, added as the decimals they are
    written as."""
    if not credits:
        return reward
    return weighted_sum([(1.0, reward), *((1.0, credit) for _, credit in credits)])


def _of_environment(trajectory: Trajectory) -> list[tuple[int, float]]:
    """(sampled tokens up to its end, reward) of each turn that its environment rewarded."""
    found, count = [], 0
    for segment in (segment for line in trajectory.lines() for segment in line.segments):
        if not isinstance(segment, Observed):
            count += len(segment.tokens)
        elif count and segment.notes:
            reward = json.loads(segment.notes).get("reward")
            if reward is not None:
                found.append((count, float(reward)))
    return found


def judged_lines(trajectory: Trajectory) -> list[Trajectory]:
    """Its branches that sampled something, itself among them, each without the others."""
    return [replace(line, branches=[], calls=[]) for line in trajectory.lines() if line.num_sampled_tokens()]


def joint_score(trajectory: Trajectory, scores: Mapping[str, Score]) -> Score:
    """The score of a trajectory whose branches have `scores`.

    Correctness and reward are means. It is correct where all are; a fault of one is a fault of all, since no
    number stands in for it. The rest is that of the branch that holds the answer.
    """
    found, first = [], 0
    for line in trajectory.lines():
        own = scores.get(line.trajectory_id)
        found += [(first + place, reward) for place, reward in (own.credits if own is not None else [])]
        first += line.num_sampled_tokens()
    judged = list(scores.values())
    branches = {name: replace(score, credits=[]) for name, score in scores.items()}
    seconds = sum(score.seconds for score in judged)
    fault = next((score for score in judged if score.reward is None), None)
    if fault is not None:
        return replace(fault, seconds=seconds, credits=[], branches=branches)
    outcomes = {score.outcome for score in judged}
    outcome = outcomes.pop() if len(outcomes) == 1 else Outcome.WRONG.value
    return replace(
        scores[_answering(trajectory)],
        outcome=outcome,
        correctness=mean_reward([score.correctness for score in judged if score.correctness is not None]),
        reward=mean_reward([score.reward for score in judged if score.reward is not None]),
        seconds=seconds,
        credits=found,
        branches=branches,
    )


def line_rewards(trajectory: Trajectory, score: Score, *, has_credits: bool) -> list[LineReward]:
    """The reward of each judged branch, in order, with the credits within it or without; that of the whole
    trajectory where one verdict is for all."""
    if not score.branches:
        whole = total_reward(score.reward or 0.0, score.credits if has_credits else [])
        return [LineReward("", whole, trajectory.num_sampled_in_all())]
    lines = trajectory.lines()
    parts = split_credits(score.credits, [line.num_sampled_tokens() for line in lines])
    return [
        LineReward(
            line.role,
            total_reward(score.branches[line.trajectory_id].reward or 0.0, credits if has_credits else []),
            line.num_sampled_tokens(),
        )
        for line, credits in zip(lines, parts, strict=True)
        if line.trajectory_id in score.branches
    ]


def branch_turns(trajectory: Trajectory, values: Sequence[float]) -> tuple[list[int], list[float]]:
    """Sampled tokens of each turn of the judged branches, and of the `values` of branches, those of turns."""
    lengths, found = list[int](), list[float]()
    for line, value in zip(judged_lines(trajectory), values, strict=True):
        lengths += line.turn_lengths()
        found += [value] * len(line.turn_lengths())
    return lengths, found


def _answering(trajectory: Trajectory) -> str:
    """The branch that a verifier of the whole trajectory would judge."""
    place, _ = trajectory.answer_place()
    for line in trajectory.lines():
        place -= line.num_sampled_tokens()
        if place < 0:
            return line.trajectory_id
    raise AssertionError(f"{trajectory.trajectory_id} has no answer")


@dataclass(frozen=True)
class Shaping:
    """Shapes rewards for length: the score changes, correctness stays what the verifier found."""

    algorithm: Algorithm
    limits: Limits

    def of(self, score: Score, trajectory: Trajectory, finish: Finish | None) -> Score:
        """The score of a trajectory that ended so."""
        cut_off, overlong = self.algorithm.cut_off_reward, self.algorithm.overlong
        if score.reward is not None and cut_off is not None and finish is Finish.LENGTH:
            score = dataclasses.replace(score, reward=cut_off)
        if score.reward is None or not overlong.buffer_tokens:
            return score
        length, limit = self._length(trajectory)
        penalty = soft_overlong(length, max_length=limit, buffer=overlong.buffer_tokens)
        reward = weighted_sum([(1.0, score.reward), (overlong.penalty, penalty)])
        return dataclasses.replace(score, reward=reward)

    def _length(self, trajectory: Trajectory) -> tuple[int, int]:
        """(sampled tokens, limit of them): of an agent's longest conversation, or of all branches."""
        if trajectory.branches and not trajectory.calls:
            return trajectory.num_sampled_in_all(), self.limits.limit_sampled_in_all(trajectory)
        longest = max(trajectory.lines(), key=Trajectory.num_sampled_tokens)
        return longest.num_sampled_tokens(), self.limits.limit_sampled_tokens(longest)


CREDITS_SCORE = "credits"
"""Named score of what parts of a response earned."""


def credited_worths(
    sampled: Sequence[Graded], greedy: Graded | None, advantage: Advantage, algorithm: Algorithm
) -> list[Worth]:
    """As `whole_worths`, with what turns and branches are worth each."""
    graded = [*sampled, *([] if greedy is None else [greedy])]
    if algorithm.credit == "turns" and any(score.credits for _, score in graded):
        rewards = [_turn_rewards(each) for each in graded]
        baseline = None if greedy is None else rewards.pop()
        lengths = [trajectory.num_sampled_in_all() for trajectory, _ in sampled]
        found = turns(rewards, lengths, advantage, algorithm, greedy=baseline)
        pairs = zip(sampled, found, strict=True)
        return [Worth(each[0], _runs(trajectory, each)) for (trajectory, _), each in pairs]
    # Under gae the trainer adds the credits, at their tokens.
    lines = [line_rewards(*each, has_credits=not algorithm.needs_critic()) for each in graded]
    means = [mean_reward([line.reward for line in own]) for own in lines]
    if any(score.branches for _, score in sampled):
        baseline_reward = None if greedy is None else means[-1]
        of_lines = line_advantages(lines[: len(sampled)], advantage, algorithm, greedy_reward=baseline_reward)
        return [
            Worth(own[0], as_runs(*branch_turns(trajectory, own)) if len(own) > 1 else [])
            for (trajectory, _), own in zip(sampled, of_lines, strict=True)
        ]
    earned = [
        (trajectory, replace(score, reward=reward, scores=_parts(score)))
        for (trajectory, score), reward in zip(graded, means, strict=True)
    ]
    return whole_worths(earned[: len(sampled)], None if greedy is None else earned[-1], advantage, algorithm)


def without_turns(worth: Worth, lengths: Sequence[int], are_left_out: Sequence[bool]) -> Worth:
    """The same with an advantage of 0 for the turns left out, of those with sampled `lengths`."""
    runs = worth.turns or [(length, worth.advantage) for length in lengths]
    values = [0.0 if is_left_out else own for is_left_out, (_, own) in zip(are_left_out, runs, strict=True)]
    return Worth(values[0], as_runs(lengths, values)) if values else worth


def _runs(trajectory: Trajectory, advantages: Sequence[float]) -> TurnAdvantages:
    lengths = trajectory.turn_lengths()
    return as_runs(lengths, advantages) if lengths else []


def _parts(score: Score) -> dict[str, float]:
    """Its named scores, and the sum of its credits as one more."""
    credits = {CREDITS_SCORE: total_reward(0.0, score.credits)} if score.scores and score.credits else {}
    return {**score.scores, **credits}


def _turn_rewards(graded: Graded) -> TurnRewards:
    trajectory, score = graded
    assert score.reward is not None
    return TurnRewards(score.reward, credits_by_turn(score.credits, trajectory.turn_lengths()))
