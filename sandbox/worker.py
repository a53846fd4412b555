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
from sandbox import frames, kernel
from sandbox.frames import Host, HostGone
from sandbox.init import Keeper, KeptInit, OwnInit
from sandbox.messages import BoxOrder, BoxSpec, SessionOrder, WorkerSettings
from sandbox.premises import Premises
from sandbox.result import Status, Tier, packed
from sandbox.running import Running
from sandbox.session_worker import SessionWorker

_DRAIN_SECONDS = 1.0


class Worker:
    """Runs requests until the host goes away."""

    def __init__(self, host: Host, settings: WorkerSettings) -> None:
        self._host = host
        self._premises = Premises(settings)
        self._keeper: Keeper | None = None
        self._owners: dict[int, Running] = {}
        self._poller = select.poll()
        host.watch(self._poller)

    def serve(self) -> None:
        """Handles requests one after the other."""
        try:
            self._guard = self._premises.furnish()
            self._host.serve(self._start, self._handle)
        finally:
            self._drop_keeper()
            self._premises.close()

    def _start(self) -> dict[str, object]:
        self._revive()
        return {"cgroup": self._premises.bounded_together}

    def _handle(
        self, header: dict[str, list[BoxOrder]], blobs: list[bytes]
    ) -> tuple[dict[str, object], list[bytes]]:
        """Runs the boxes; the answer."""
        orders = header["boxes"]
        group = self._premises.group
        memory = sum(order["limits"]["memory_bytes"] + inside.disk_space(order) for order in orders)
        processes = sum(order["limits"]["processes"] for order in orders)
        group.bound(memory, processes)
        specs: list[BoxSpec] = [
            {**order, "max_tasks": self._premises.max_tasks(order["limits"]["processes"])} for order in orders
        ]
        self._revive()
        kills_before = group.num_oom_kills()
        boxes = self._make_boxes(specs, blobs)
        try:
            self._run(boxes)
            oom_killed = group.num_oom_kills() > kills_before
            tier = self._premises.tier
            answers = [packed(box.outcome(oom_killed=oom_killed, tier=tier)) for box in boxes]
        finally:
            for descriptor in self._owners:
                self._poller.unregister(descriptor)
            self._owners.clear()
            for box in boxes:
                box.close()
                self._premises.remove_directory(box.pid)
        results = {
            "results": [fields for fields, _ in answers],
            "num_blobs": [len(parts) for _, parts in answers],
        }
        return results, [blob for _, parts in answers for blob in parts]

    def _make_boxes(self, specs: list[BoxSpec], blobs: list[bytes]) -> list[Running]:
        boxes: list[Running] = []
        for spec in specs:
            count = 1 + len(spec["files"])
            # One run lives below the keeper at a time; one that leaves files is judged by an init of its own.
            keeper = None if boxes or spec["collect"] else self._keeper
            init = KeptInit(keeper) if keeper else OwnInit(self._premises.zygote())
            boxes.append(Running(spec, blobs[0], blobs[1:count], init))
            blobs = blobs[count:]
        return boxes

    def _revive(self) -> None:
        """A zygote and a keeper that live."""
        if not self._premises.has_zygote():
            self._drop_keeper()
        zygote = self._premises.zygote()
        if self._premises.tier is Tier.NAMESPACES and (self._keeper is None or self._keeper.has_died()):
            self._drop_keeper()
            self._keeper = Keeper(zygote)

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
    """Entry point: `worker.py DESCRIPTOR HOST_PID`; the settings are the first message, of a session's worker
    with the session's order."""
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
        order = settings.pop("session", None)
        told = cast(WorkerSettings, settings)
        if order is None:
            Worker(Host(host, host_pid), told).serve()
        else:
            SessionWorker(Host(host, host_pid), told, cast(SessionOrder, order)).serve()
