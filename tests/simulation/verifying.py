"""Text and verdicts without tokenizer and processes: slow at times, faulty at times, never wrong."""

import asyncio
from collections.abc import Sequence
from typing import Any

from simulation.world import STOP_TOKENS, World

from asyncrl.model.token_text import StopStrings
from verifiers.judgement import GroupJudgement, Judgement
from verifiers.verdict import Outcome, Verdict, fault


class Codec:
    """Text is the tokens' numbers."""

    stop_token_ids = STOP_TOKENS

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self.stop = StopStrings(stop, self.decode)

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

    def piece(self, token: int) -> str:
        return str(token)


class SimulatedPool:
    """In place of VerifierPool."""

    queue_seconds = 0.0
    num_killed = num_cached = num_fast = 0

    def __init__(self, world: World) -> None:
        self._world = world

    async def start(self) -> None:
        """Nothing has to start."""

    async def close(self) -> None:
        """Nothing runs."""

    def counters(self) -> dict[str, float]:
        return {}

    async def judge(
        self, name: str, options: Any, response: str, reference: Any, *, folder: Any, task: object = None
    ) -> Judgement:
        plan = self._world.plan
        # The real pool ends a verification at its deadline.
        await asyncio.sleep(min(10.0, self._world.delay(plan.verify_seconds)))
        if self._world.rng.random() < plan.fault_share:
            return Judgement(fault("the worker died"))
        score = truth(response)
        return Judgement(Verdict(Outcome.CORRECT if score else Outcome.WRONG, score))

    async def judge_group(
        self, name: str, options: Any, responses: Sequence[str], reference: Any, *, folder: Any, tasks: object
    ) -> GroupJudgement:
        plan = self._world.plan
        await asyncio.sleep(min(10.0, self._world.delay(plan.verify_seconds)) * len(responses))
        if self._world.rng.random() < plan.fault_share:
            return GroupJudgement((fault("the worker died"),) * len(responses))
        return GroupJudgement(
            tuple(
                Verdict(Outcome.CORRECT if score else Outcome.WRONG, score) for score in map(truth, responses)
            )
        )


def truth(response: str) -> float:
    """What a verifier finds in `response`."""
    return float(sum(map(int, response.split())) % 2)
