"""All that a worker prepares once for its boxes, and takes away at its end: a control group, a user, a
directory, the zygote."""

import os
import time

from sandbox import cgroup, leftovers, strays, tree, users, watch
from sandbox.guard import Guard
from sandbox.messages import WorkerSettings
from sandbox.result import Tier
from sandbox.zygote_process import ZygoteProcess

_EXTRA_TASKS = 4
"""The zygote, the init, and a judge with its init belong to the same user."""
_COUNT_SECONDS = 1.0


class Premises:
    """`close` ends every process that is left on them."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.tier = Tier(settings["tier"])
        self._settings = settings
        hierarchies = cgroup.this_machine() if settings["use_cgroups"] else []
        leftovers.sweep(settings["temporary"], hierarchies)
        self.group = cgroup.Cgroup(hierarchies, os.getpid())
        self._zygote: ZygoteProcess | None = None
        self._work_base: str | None = None
        self._work_lock = -1
        self._user, self._user_claim = users.claim()
        self._user_tasks, self._counted_at = 0, 0.0

    def furnish(self) -> Guard:
        """Makes the directory, where the tier needs one; the guard of the boxes."""
        if self.tier is not Tier.NAMESPACES:
            self._work_base, self._work_lock = leftovers.make_work_base(
                self._settings["temporary"], self._user
            )
        return Guard(
            memory=not self.group.controls("memory"),
            work_base=self._work_base,
            tasks=self._shares_user and not self.group.controls("pids"),
        )

    @property
    def bounded_together(self) -> list[str]:
        """The subset of "memory" and "pids" that the control group bounds."""
        return [name for name in ("memory", "pids") if self.group.controls(name)]

    @property
    def _shares_user(self) -> bool:
        """Whether the kernel counts the processes of a run together with those of others."""
        return self.tier is not Tier.NAMESPACES and self._user_claim is None

    def max_tasks(self, processes: int) -> int:
        """RLIMIT_NPROC of a run."""
        if not self._shares_user:
            return processes + _EXTRA_TASKS
        # The bound is the user's, not the run's: the guard, or a cgroup, counts the run by itself.
        now = time.monotonic()
        if not self._user_tasks or now > self._counted_at + _COUNT_SECONDS:
            self._user_tasks, self._counted_at = watch.user_tasks(self._user), now
        return self._user_tasks + processes + _EXTRA_TASKS

    def has_zygote(self) -> bool:
        """Whether the zygote lives."""
        return self._zygote is not None and not self._zygote.has_died()

    def zygote(self) -> ZygoteProcess:
        """The zygote; a new one where there is none that lives. Raises SandboxError."""
        if self._zygote is not None and not self._zygote.has_died():
            return self._zygote
        self._end_zygote()
        self._zygote = ZygoteProcess(
            self._settings, self.group, user=self._user, work_base=self._work_base or ""
        )
        return self._zygote

    def _end_zygote(self) -> None:
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote = None

    def remove_directory(self, pid: int) -> None:
        """Removes the directory of the box whose init was `pid`; 0: it has not started."""
        if self._work_base is not None and pid:
            tree.remove(f"{self._work_base}/{pid}")

    def close(self) -> None:
        """Takes everything away. The boxes have ended, or end now."""
        self._end_zygote()
        # A zygote that was killed may have cloned one more process, and not said so.
        strays.end_children()
        self.group.close()
        if self._work_base is not None:
            tree.remove(self._work_base)
            os.close(self._work_lock)
