"""In place of the answers to a trainer, where no trainer is to come."""

from asyncrl.wire.messages import CommitRequest, DrainRequest, TakeReply, TakeRequest


class NoRequests:
    """Fails where it is asked."""

    async def take(self, request: TakeRequest, wait_seconds: float) -> TakeReply | None:
        raise AssertionError("no trainer takes here")

    async def drain(self, request: DrainRequest, wait_seconds: float) -> bool:
        raise AssertionError("no trainer drains here")

    async def commit(self, request: CommitRequest, wait_seconds: float) -> bool:
        raise AssertionError("no trainer commits here")
