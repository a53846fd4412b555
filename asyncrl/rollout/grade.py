"""Verdicts for finished trajectories: picks the verifier of a task, retries faults, never blocks the event
loop.

A fault stays a fault: it has no score, and no number stands in for one.
"""

from pathlib import Path
from typing import Protocol, runtime_checkable

from asyncrl.recipe import Verifying
from asyncrl.rollout.tasks import VerifierCache
from asyncrl.types import Score, Task
from verifiers.pool import VerifierPool
from verifiers.verdict import Outcome, Verdict


@runtime_checkable
class AsyncVerifier(Protocol):
    """A verifier that waits (for a sandbox, a server) rather than computes."""

    async def verify_async(self, response: str, reference: object) -> Verdict: ...


class Grader:
    """Owns the pool of verifier workers. Async context manager."""

    def __init__(self, verifying: Verifying, verifiers: VerifierCache, *, max_fault_retries: int) -> None:
        self._verifiers = verifiers
        self._max_fault_retries = max_fault_retries
        self._pool = VerifierPool(
            num_workers=verifying.num_workers, timeout_seconds=verifying.timeout_seconds
        )

    async def __aenter__(self) -> "Grader":
        await self._pool.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    async def grade(self, task: Task, response: str) -> Score:
        """The score of `response`; its outcome is a fault only after all retries."""
        for _ in range(self._max_fault_retries + 1):
            verdict = await self._verify(task, response)
            if verdict.outcome is not Outcome.FAULT:
                break
        reward = None if verdict.score is None else verdict.score + verdict.shaping
        return Score(
            verdict.outcome.value, verdict.score, reward, verdict.extracted, verdict.detail, verdict.seconds
        )

    async def _verify(self, task: Task, response: str) -> Verdict:
        verifier = self._verifiers.get(task.verifier)
        if isinstance(verifier, AsyncVerifier):
            return await verifier.verify_async(response, task.reference)
        spec, folder = task.verifier, self._verifiers.folder
        return await self._pool.verify(spec.name, spec.options, response, task.reference, folder=Path(folder))
