"""The worker process: takes one request at a time from the host, runs it in boxes, answers.

Waits on the host's socket, the host's life (pidfd), the boxes' pipes and exits, and deadlines; woken by any
of them. Trusted, outside of the jail; of a program it touches bytes only. When the host hangs up or dies it
ends all boxes, its zygote and its cgroup, and then itself."""

import contextlib
import functools
import os
import select
import signal
import socket
import sys
import time
from typing import cast

from sandbox import box as inside
from sandbox import cgroup, frames, kernel, leftovers, strays, tree, users, watch
from sandbox.guard import Guard
from sandbox.init import Init, OwnInit
from sandbox.kept import Keeper, KeptInit
from sandbox.messages import BoxOrder, BoxSpec, WorkerSettings
from sandbox.polling import readable
from sandbox.result import SandboxError, Status, Tier, packed
from sandbox.running import Running
from sandbox.zygote_process import ZygoteProcess

_DRAIN_SECONDS = 1.0
_EXTRA_TASKS = 4
"""The zygote, the init, and a judge with its init belong to the same user."""
_COUNT_SECONDS = 1.0


class HostGone(Exception):
    """The host has hung up or died: nothing waits for an answer."""


class Worker:
    """Runs requests until the host goes away."""

    def __init__(self, host: socket.socket, host_pid: int, settings: WorkerSettings) -> None:
        self._host = host
        self._host_life = os.pidfd_open(host_pid)
        if os.getppid() != host_pid:
            raise HostGone
        self._settings = settings
        self._tier = Tier(settings["tier"])
        hierarchies = cgroup.this_machine() if settings["use_cgroups"] else []
        leftovers.sweep(settings["temporary"], hierarchies)
        self._group = cgroup.Cgroup(hierarchies, os.getpid())
        self._zygote: ZygoteProcess | None = None
        self._keeper: Keeper | None = None
        self._work_base: str | None = None
        self._user, self._user_claim = users.claim()
        self._user_tasks, self._counted_at = 0, 0.0
        self._owners: dict[int, Running] = {}
        self._poller = select.poll()
        self._poller.register(self._host_life, select.POLLIN)
        self._poller.register(host, select.POLLRDHUP)

    def serve(self) -> None:
        """Handles requests one after the other."""
        try:
            if self._tier is not Tier.NAMESPACES:
                self._work_base, self._work_lock = leftovers.make_work_base(
                    self._settings["temporary"], self._user
                )
            self._guard = Guard(
                memory=not self._group.controls("memory"),
                work_base=self._work_base,
                tasks=self._shares_user and not self._group.controls("pids"),
            )
            self._start()
            while True:
                header, blobs = frames.receive(self._read_exactly)
                try:
                    answer = self._handle(header["boxes"], blobs)
                except (SandboxError, OSError) as error:
                    answer = frames.pack({"error": str(error)})
                self._host.sendall(answer)
        except (HostGone, ConnectionError):
            pass
        finally:
            self._close()

    @property
    def _shares_user(self) -> bool:
        """Whether the kernel counts the processes of a run together with those of others."""
        return self._tier is not Tier.NAMESPACES and self._user_claim is None

    def _max_tasks(self, processes: int) -> int:
        """RLIMIT_NPROC of a run."""
        if not self._shares_user:
            return processes + _EXTRA_TASKS
        # The bound is the user's, not the run's: the guard, or a cgroup, counts the run by itself.
        now = time.monotonic()
        if not self._user_tasks or now > self._counted_at + _COUNT_SECONDS:
            self._user_tasks, self._counted_at = watch.user_tasks(self._user), now
        return self._user_tasks + processes + _EXTRA_TASKS

    def _start(self) -> None:
        try:
            self._revive()
        except SandboxError as error:
            self._host.sendall(frames.pack({"error": str(error)}))
            raise HostGone from error
        bounded = [name for name in ("memory", "pids") if self._group.controls(name)]
        self._host.sendall(frames.pack({"cgroup": bounded}))

    def _close(self) -> None:
        self._drop_keeper()
        if self._zygote is not None:
            self._zygote.kill()
        # A zygote that was killed may have cloned one more process, and not said so.
        strays.end_children()
        self._group.close()
        if self._work_base is not None:
            tree.remove(self._work_base)
            os.close(self._work_lock)

    def _read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if self._host_life in readable(self._host.fileno(), self._host_life):
                raise HostGone
            chunk = self._host.recv(min(size - len(data), 1 << 20))
            if not chunk:
                raise HostGone
            data += chunk
        return bytes(data)

    def _handle(self, orders: list[BoxOrder], blobs: list[bytes]) -> bytes:
        """Runs the boxes; the answer."""
        memory = sum(order["limits"]["memory_bytes"] + inside.disk_space(order) for order in orders)
        processes = sum(order["limits"]["processes"] for order in orders)
        self._group.bound(memory, processes)
        specs: list[BoxSpec] = [
            {**order, "max_tasks": self._max_tasks(order["limits"]["processes"])} for order in orders
        ]
        self._revive()
        kills_before = self._group.num_oom_kills()
        boxes = self._make_boxes(specs, blobs)
        try:
            self._run(boxes)
            oom_killed = self._group.num_oom_kills() > kills_before
            answers = [packed(box.outcome(oom_killed=oom_killed, tier=self._tier)) for box in boxes]
        finally:
            for descriptor in self._owners:
                self._poller.unregister(descriptor)
            self._owners.clear()
            for box in boxes:
                box.close()
                if self._work_base is not None and box.pid:
                    tree.remove(f"{self._work_base}/{box.pid}")
        results = {
            "results": [fields for fields, _ in answers],
            "num_blobs": [len(parts) for _, parts in answers],
        }
        return frames.pack(results, [blob for _, parts in answers for blob in parts])

    def _make_boxes(self, specs: list[BoxSpec], blobs: list[bytes]) -> list[Running]:
        assert self._zygote is not None
        boxes: list[Running] = []
        for spec in specs:
            count = 1 + len(spec["files"])
            # One run lives below the keeper at a time; one that leaves files is judged by an init of its own.
            is_kept = self._keeper is not None and not boxes and not spec["collect"]
            init: Init = KeptInit(self._keeper) if self._keeper and is_kept else OwnInit(self._zygote)
            boxes.append(Running(spec, blobs[0], blobs[1:count], init))
            blobs = blobs[count:]
        return boxes

    def _revive(self) -> None:
        """A zygote and a keeper that live."""
        if self._zygote is None or self._zygote.has_died():
            self._drop_keeper()
            if self._zygote is not None:
                self._zygote.kill()
                self._zygote = None
            self._zygote = ZygoteProcess(
                self._settings, self._group, user=self._user, work_base=self._work_base or ""
            )
        if self._tier is Tier.NAMESPACES and (self._keeper is None or self._keeper.has_died()):
            self._drop_keeper()
            self._keeper = Keeper(self._zygote)

    def _drop_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper = None

    def _run(self, boxes: list[Running]) -> None:
        self._guard.start()
        links: list[socket.socket] = []
        if len(boxes) == 2:
            links = list(socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            # The judge, which comes last, must be up before the program can compete with it.
            for index in reversed(range(len(boxes))):
                boxes[index].start(links[index] if links else None)
        finally:
            for link in links:
                link.close()
        self._wait(boxes)

    def _wait(self, boxes: list[Running]) -> None:
        """Until every box has ended and its output is read."""
        ended_at: float | None = None
        # Beyond the deadline by this much, pipes that are still held are given up.
        for box in boxes:
            self._listen(box)
        while self._owners:
            self._poll(boxes)
            now = time.monotonic()
            for box in boxes:
                if not box.has_ended and now >= box.deadline:
                    box.kill(Status.TIME_LIMIT, f"ran longer than {box.limits.wall_seconds:g} s")
            if boxes[-1].has_ended:
                for box in boxes[:-1]:
                    box.dismiss()
            if all(box.has_ended for box in boxes):
                ended_at = ended_at or now
                if now > ended_at + _DRAIN_SECONDS:
                    return

    def _listen(self, box: Running) -> None:
        for descriptor in box.next_descriptors():
            self._owners[descriptor] = box
            self._poller.register(descriptor, select.POLLIN)

    def _poll(self, boxes: list[Running]) -> None:
        now = time.monotonic()
        alive = [box for box in boxes if not box.has_ended]
        wait = min((box.deadline for box in alive), default=now + _DRAIN_SECONDS) - now
        if alive:
            wait = min(wait, self._guard.wait_seconds())
        for descriptor, _ in self._poller.poll(max(0.0, wait) * 1000 + 1):
            owner = self._owners.get(descriptor)
            if owner is None:
                raise HostGone
            if not owner.on_readable(descriptor):
                self._poller.unregister(descriptor)
                del self._owners[descriptor]
            self._listen(owner)
        self._guard.look([box for box in alive if not box.has_ended])


def main() -> None:
    """Entry point: `worker.py DESCRIPTOR HOST_PID`; the settings are the first message."""
    descriptor, host_pid = int(sys.argv[1]), int(sys.argv[2])
    # Ctrl-C at a terminal reaches the whole foreground group: the host decides when a worker ends.
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel.adopt_orphans()
    kernel.set_dumpable(False)
    host = socket.socket(fileno=descriptor)
    # The host knows a worker's death by the hang-up: no process that the worker starts may hold the line.
    host.set_inheritable(False)
    with contextlib.suppress(HostGone, ConnectionError):
        settings, _ = frames.receive(functools.partial(frames.read_exactly, host))
        Worker(host, host_pid, cast(WorkerSettings, settings)).serve()
