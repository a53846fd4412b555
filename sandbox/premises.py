"""All that a worker prepares once for its boxes, and takes away at its end: a control group, a user, a
directory, the zygote."""

import os
import time

from sandbox import box as inside
from sandbox import cgroup, leftovers, tree, watch
from sandbox.jail import claim_user
from sandbox.messages import WorkerSettings
from sandbox.result import Status, Tier
from sandbox.running import Running
from sandbox.zygote_process import ZygoteProcess

_SECONDS = 0.05
_SHARE = 4
"""Looking takes at most one part in this many of a worker's time, however much there is to see."""
_HIDDEN_SAMPLES = 2


class Guard:
    """Looks at the boxes of one request at a time; `start` before each.

    At the CPU time of all processes together everywhere; at memory where no cgroup bounds it; at files where
    the directory is on a disk of the machine; at processes where one user has those of other runs too.
    """

    def __init__(self, *, memory: bool, work_base: str | None, tasks: bool) -> None:
        self._memory = memory
        self._work_base = work_base
        self._tasks = tasks
        self._next_at = 0.0
        self._hidden: dict[int, dict[int, int]] = {}

    def start(self) -> None:
        """A new request begins."""
        self._next_at = time.monotonic() + _SECONDS
        self._hidden = {}

    def wait_seconds(self) -> float:
        """Until the next look."""
        return max(0.0, self._next_at - time.monotonic())

    def look(self, boxes: list[Running], *, at_once: bool = False) -> None:
        """Ends those that hold too much; not before it is time, unless `at_once`."""
        began = time.monotonic()
        if began < self._next_at and not at_once:
            return
        for box in boxes:
            if began >= box.deadline:
                # It is ended for that, and not kept waiting for this.
                continue
            excess = self._excess(box, counts_hidden=not at_once)
            if excess is not None:
                box.kill(*excess)
        now = time.monotonic()
        self._next_at = now + max(_SECONDS, (_SHARE - 1) * (now - began))

    def _excess(self, box: Running, *, counts_hidden: bool) -> tuple[Status, str] | None:
        """Why a box is to be ended. `counts_hidden`: this sample comes a while after the last one, so that a
        process that is hidden in both does not just end."""
        directory = None if self._work_base is None else f"{self._work_base}/{box.pid}"
        limits = box.limits
        found = watch.look(
            box.pid,
            box.seen_cpu,
            # By the kernel's own count there can be no more, where it counts the run alone.
            enough_tasks=limits.processes if self._tasks else box.spec["max_tasks"],
            seconds=_SECONDS,
            enough_memory=limits.memory_bytes if self._memory else None,
            directory=directory,
        )
        if box.seen_cpu.seconds > limits.cpu_seconds:
            allowed = limits.cpu_seconds
            return Status.TIME_LIMIT, f"used more than {allowed:g} s of CPU time in all its processes"
        if self._memory and found.memory_bytes > limits.memory_bytes:
            return Status.MEMORY_LIMIT, f"its processes together held {found.memory_bytes} bytes"
        if self._tasks and found.num_tasks > limits.processes:
            return Status.MEMORY_LIMIT, f"had {found.num_tasks} processes; {limits.processes} are allowed"
        if directory is None:
            return None
        if counts_hidden:
            before = self._hidden.get(box.pid, {})
            hidden = self._hidden[box.pid] = {pid: before.get(pid, 0) + 1 for pid in found.hidden}
            if max(hidden.values(), default=0) >= _HIDDEN_SAMPLES:
                return Status.MEMORY_LIMIT, "one of its processes hides what it holds"
        return self._disk_excess(box, directory, found.unnamed_bytes)

    def _disk_excess(self, box: Running, directory: str, unnamed: int) -> tuple[Status, str] | None:
        # What it was given does not count, nor does its input, which is a file without a name. While the run
        # is set up, what it is given is there twice: also in the file without a name that it came in.
        allowed = inside.disk_space(box.spec) + box.num_stdin_bytes + inside.given_bytes(box.spec)
        entries = inside.num_inodes(box.limits.disk_bytes)
        found = tree.measure(directory, enough_bytes=allowed, enough_entries=entries)
        if found.num_bytes + unnamed > allowed:
            return Status.MEMORY_LIMIT, f"its files together held {found.num_bytes + unnamed} bytes or more"
        if found.num_entries > entries:
            return Status.MEMORY_LIMIT, f"made more than {entries} files"
        if found.is_too_deep:
            return Status.MEMORY_LIMIT, f"nested directories more than {tree.MAX_DEPTH} levels deep"
        return None


_EXTRA_TASKS = 4
"""The zygote, the init, and a judge with its init belong to the same user."""
_COUNT_SECONDS = 1.0


class Premises:
    """`close` ends every process that is left on them."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.tier = Tier(settings["tier"])
        self._settings = settings
        hierarchies = cgroup.this_machine()
        leftovers.sweep(settings["temporary"], hierarchies)
        self.group = cgroup.Cgroup(hierarchies, os.getpid())
        self._zygote: ZygoteProcess | None = None
        self._work_base: str | None = None
        self._work_lock = -1
        self._user, self._user_claim = claim_user()
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
        leftovers.end_children()
        self.group.close()
        if self._work_base is not None:
            tree.remove(self._work_base)
            os.close(self._work_lock)
