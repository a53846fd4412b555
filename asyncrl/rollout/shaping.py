"""Rewards shaped for length: the score changes, correctness stays what the verifier found."""

import dataclasses
from dataclasses import dataclass

from asyncrl.recipe import Algorithm
from asyncrl.records import Finish, Score, Trajectory
from asyncrl.rollout.limits import Limits
from verifiers.format import soft_overlong
from verifiers.verdict import weighted_sum


@dataclass(frozen=True)
class Shaping:
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
