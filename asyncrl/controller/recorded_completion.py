"""From an open group to a ready one where `critic.warmup_run` has the responses and their verdicts."""

from dataclasses import dataclass

from asyncrl.journal.recorded_groups import RecordedGroup
from asyncrl.loops.run_part import RunPart
from asyncrl.records import Finish, Score, Segment
from asyncrl.replay.group import Group
from asyncrl.replay.queue import ReplayQueue
from asyncrl.rollout.complete import GroupCompletion


@dataclass(frozen=True)
class RecordedCompletion(RunPart):
    """In place of the rollout loop's body, which gets the groups that are not recorded."""

    queue: ReplayQueue
    others: GroupCompletion
    num_recorded: int
    """Groups; they are the first."""

    def may_admit(self) -> bool:
        """Batches of a warm-up on recorded responses have no other groups, which the policy has to learn."""
        num_steps = self.num_recorded // self.queue.settings.groups_per_batch
        return not self.needs_server() or self.queue.num_steps_taken >= num_steps

    def needs_server(self) -> bool:
        return self.queue.num_admitted >= self.num_recorded

    async def run(self, group: Group) -> None:
        """Leaves the group ready. One that a crash left open keeps the parts that the journal has."""
        recorded = group.task.reference
        if not isinstance(recorded, RecordedGroup):
            await self.others.run(group)
            return
        rewards: dict[str, float] = {}
        for trajectory, response in zip(group.trajectories, recorded.responses, strict=True):
            if trajectory.finish is None:
                # Which policy sampled it is that run's matter: here it is of the version that admits it.
                segment = Segment(group.admitted_version, [*response.tokens], [*response.behavior_logprobs])
                self.queue.append(group, trajectory, [segment], Finish(response.finish))
            if trajectory.trajectory_id not in group.scores:
                score = Score(
                    response.outcome,
                    response.correctness,
                    response.reward,
                    response.extracted,
                    response.detail,
                    0.0,
                )
                self.queue.score(group, trajectory, score, response.text)
            rewards[trajectory.trajectory_id] = response.reward
        # The critic makes advantages of rewards.
        self.queue.make_ready(group, rewards)
