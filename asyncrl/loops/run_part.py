"""The seam at which features act beside the controller's loops."""

from asyncrl.journal.ending import RunEnd
from asyncrl.records import PolicyVersion


class RunPart:
    """A feature that acts while a run lasts; it overrides what it needs. `assemble` lists those of a run,
    which act in that order."""

    async def begin(self) -> None:
        """The controller's service listens, and no loop runs yet."""

    async def loop(self) -> None:
        """Runs beside the controller's loops, which cancel it when the run ends."""

    def may_admit(self) -> bool:
        """Whether the queue may get another group now."""
        return True

    def needs_server(self) -> bool:
        """Whether the next group is generated."""
        return True

    async def after_training(self, version: PolicyVersion) -> None:
        """The trainer has ended, at `version`. Returns once the part has made what it makes of that."""

    def end_reached(self, version: PolicyVersion) -> RunEnd | None:
        """Why training ended before its last step, where the part ended it."""
        return None

    def lacks(self, version: PolicyVersion) -> bool:
        """Whether the same command would make something of the last version that is not there yet."""
        return False

    async def close(self) -> None:
        """No loop runs any more."""
