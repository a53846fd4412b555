"""All probes, in the order in which their lines are read: what can stop every run comes first."""

from pathlib import Path

from asyncrl.launch.doctor.clock import clock
from asyncrl.launch.doctor.disks import disk, hub_cache
from asyncrl.launch.doctor.finding import State
from asyncrl.launch.doctor.gpus import TORCH_SECONDS, cuda, gpus
from asyncrl.launch.doctor.hardware import (
    control_groups,
    cores,
    cpu,
    file_descriptors,
    memory,
    shared_memory,
)
from asyncrl.launch.doctor.network import host_name, hub, ports, proxies
from asyncrl.launch.doctor.packages import locked, owners, pins
from asyncrl.launch.doctor.probe import Probe
from asyncrl.launch.doctor.sandbox_tiers import SANDBOX_SECONDS, sandbox
from asyncrl.system.cache import cache_folder
from asyncrl.system.gpus import ASK_SECONDS

READ_SECONDS = 10.0
"""For a look at files of the kernel."""
ASKED_SECONDS = 20.0
"""For disks, names and addresses that others answer for."""
RUNS = "runs"
"""Folder of runs, unless a recipe says another."""


def probes() -> list[Probe]:
    """Those of this machine and the current folder."""
    here = Path.cwd()
    return [
        Probe("own packages", owners, READ_SECONDS),
        Probe("pinned packages", pins, READ_SECONDS),
        Probe("locked packages", locked, READ_SECONDS),
        Probe("cpu", cpu, READ_SECONDS),
        Probe("cores", cores, READ_SECONDS),
        Probe("memory", memory, READ_SECONDS),
        Probe("cgroups", control_groups, READ_SECONDS),
        Probe("/dev/shm", shared_memory, READ_SECONDS),
        Probe("open files", file_descriptors, READ_SECONDS),
        Probe("gpus", gpus, 2 * ASK_SECONDS + READ_SECONDS, State.BROKEN),
        Probe("cuda", cuda, ASK_SECONDS + TORCH_SECONDS + READ_SECONDS, State.BROKEN),
        Probe("current folder", lambda: disk("current folder", here), ASKED_SECONDS, State.BROKEN),
        Probe("runs", lambda: disk("runs", here / RUNS), ASKED_SECONDS, State.BROKEN),
        Probe("hub cache", lambda: disk("hub cache", hub_cache()), ASKED_SECONDS),
        Probe("asyncrl's cache", lambda: disk("asyncrl's cache", cache_folder("")), ASKED_SECONDS),
        Probe("ports", ports, ASKED_SECONDS, State.BROKEN),
        Probe("host name", host_name, ASKED_SECONDS),
        Probe("clock", clock, READ_SECONDS),
        Probe("proxies", proxies, ASKED_SECONDS),
        Probe("hub", hub, ASKED_SECONDS),
        Probe("sandbox", sandbox, SANDBOX_SECONDS + READ_SECONDS),
    ]
