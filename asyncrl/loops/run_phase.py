"""How far a run has come, and the seam at which features act beside the controller's loops."""

import asyncio
import contextlib

from asyncrl.journal.starts import RunEnd
from asyncrl.loops.waits import Waits
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


class RunPhase:
    """One per run. Every part reads it; only its own methods write it, and each of them wakes all waits.

    A run opens, is over (no more batches), ends (no more streams), closes. `stop` does the middle two.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._loop = asyncio.get_running_loop()
        self._has_failed = asyncio.Event()
        self._failure: Exception | None = None
        self.is_open = False
        """The loops run and the trainer is answered."""
        self.is_training = False
        """The trainer lives or is being restarted."""
        self.is_over = False
        """The trainer gets no further batch, and no task is admitted."""
        self.is_ending = False
        """No stream starts; unfinished groups stay open in the journal."""
        self.is_stopped = False
        """The run was asked to stop before its end."""
        self.is_cut_off = False
        """The trainer was ended before it had saved and exported its last version."""
        self.is_finished = False
        """All that the run makes is there, and the journal says so."""
        self.is_held = False
        """No stream starts: the trainer went back to an older version, which is not announced yet."""

    def open(self) -> None:
        """The loops start."""
        self.is_open = self.is_training = True
        self._waits.notify()

    def end_batches(self) -> None:
        """The last step is done, or held-out accuracy has reached its target."""
        self.is_over = True
        self._waits.notify()

    def end_rollouts(self) -> None:
        """The last step is trained: nothing is left to generate but evaluations."""
        self.is_over = self.is_ending = True
        self._waits.notify()

    def resume_rollouts(self) -> None:
        """A trainer asks for a batch that there is to be; one that died after the last step begins before
        it."""
        if self.is_over and not self.is_stopped:
            self.is_over = self.is_ending = False
            self._waits.notify()

    def end_training(self) -> None:
        """The trainer has ended well."""
        self.is_training = False
        self.is_over = self.is_ending = True
        self._waits.notify()

    def cut_off(self) -> None:
        """The trainer ends before it has saved."""
        self.is_cut_off = True

    def finish(self) -> None:
        self.is_finished = True

    def stop(self) -> None:
        """The run is asked to stop."""
        self.is_stopped = self.is_over = self.is_ending = True
        self._waits.notify()

    def close(self) -> None:
        """The loops have ended."""
        self.is_open = False
        self._waits.notify()

    def hold_streams(self) -> None:
        self.is_held = True
        self._waits.notify()

    def release_streams(self) -> None:
        self.is_held = False
        self._waits.notify()

    def fail(self, error: Exception) -> None:
        """Ends the run with `error`, which came up outside its loops; the first one counts."""
        self._failure = self._failure or error
        self._has_failed.set()

    def fail_from_thread(self, error: Exception) -> None:
        """`fail`, from any thread. Does nothing once the event loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.fail, error)

    async def raise_failure(self) -> None:
        """Waits for `fail` and raises its error."""
        await self._has_failed.wait()
        assert self._failure is not None
        raise self._failure
