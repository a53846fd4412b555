"""A worker of verifications, as the pool sees it."""

from dataclasses import dataclass

from verifiers.judgement import Limit
from verifiers.template import Worker
from verifiers.verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's answer to one step."""

    verdict: Verdict | None
    limit: Limit | None
    found: bytes
    """The result of the step; empty where there is none, or a verdict instead."""


class VerifierWorker(Worker):
    num_served = 0

    async def ask(self, request: bytes) -> Reply:
        """The reply to a packed message. Raises as `exchange`."""
        header, (found,) = await self.exchange(request)
        fields, limit = header["verdict"], header["limit"]
        verdict = None if fields is None else Verdict(**{**fields, "outcome": Outcome(fields["outcome"])})
        return Reply(verdict, None if limit is None else Limit(limit), found)
