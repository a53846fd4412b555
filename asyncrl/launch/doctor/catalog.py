"""All probes, in the order in which their lines are read: what can stop every run comes first."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from asyncrl.launch.doctor.disks import disk, hub_cache
from asyncrl.launch.doctor.gpus import TORCH_SECONDS, cuda, gpus
from asyncrl.launch.doctor.hardware import (
    clock,
    control_groups,
    cores,
    cpu,
    file_descriptors,
    memory,
    shared_memory,
)
from asyncrl.launch.doctor.network import host_name, hub, ports, proxies
from asyncrl.launch.doctor.packages import locked, owners, pins
from asyncrl.launch.doctor.probe import Finding, Probe, State, lost, ok, output_of
from asyncrl.system.gpus import ASK_SECONDS
from asyncrl.system.places import cache_folder
from asyncrl.turns.environments.boxes import ENGINES

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
        Probe("containers", containers, ASKED_SECONDS),
    ]


SANDBOX_SECONDS = 120.0
"""For a pool, its interpreter and nine programs, on a busy machine."""


def containers(
    which: Callable[[str], str | None] = shutil.which,
    ask: Callable[..., "subprocess.CompletedProcess[str]"] = output_of,
) -> Iterator[Finding]:
    """The engine that the environment container would use for rows with an image, if it answers."""
    engine = next((name for name in ENGINES if which(name)), None)
    loss = "Tasks with an image are refused (environment container); others run in the sandbox."
    if engine is None:
        yield lost("containers", "neither podman nor docker", loss, "Install podman; it needs no root.")
        return
    try:
        done = ask([engine, "info"], seconds=ASKED_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield lost("containers", f"`{engine} info`: {error}", loss, f"Correct {engine}'s installation.")
        return
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no words"])[-1]
        yield lost("containers", f"`{engine} info`: {last}", loss, f"Start {engine}, or install podman.")
        return
    yield ok("containers", f"{engine} answers")


def measured() -> dict[str, Any]:
    """The answer of `asyncrl sandbox doctor --json`. Raises ValueError, OSError and TimeoutExpired."""
    command = [sys.executable, "-P", "-m", "asyncrl.commands.main", "sandbox", "doctor", "--json"]
    done = output_of(command, seconds=SANDBOX_SECONDS)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ValueError(f"`asyncrl sandbox doctor` ended with exit code {done.returncode}: {last}") from None
    return answer


def sandbox(measure: Callable[[], dict[str, Any]] = measured) -> Iterator[Finding]:
    """Its tier, and the layers that do not hold."""
    said = measure()
    missing = [each for each in said["layers"] if not each["holds"]]
    tiers = [each for each in missing if each["name"].startswith("tier ")]
    detail = "`asyncrl sandbox doctor` says what holds back what."
    if said["tier"] is None:
        yield lost(
            "sandbox",
            "; ".join(f"{each['name']}: {each['note']}" for each in tiers) or "no tier",
            "Untrusted programs are refused: the verifier code, the tool python and their recipes.",
            detail,
        )
        return
    for each in tiers:
        yield lost(
            "sandbox",
            f"tier {said['tier']}; {each['name']} is not to be had",
            "Programs read the host's /usr and interpreter; disk and processes are sampled, not bounded.",
            each["note"].rpartition("To enable: ")[2] or detail,
        )
    for each in missing:
        if each not in tiers:
            yield lost(
                "sandbox", f"{each['name']}: {each['note']}", "The sandbox does not enforce it here.", detail
            )
    if not missing:
        yield ok("sandbox", f"tier {said['tier']}, every layer holds; not enforced: {len(said['gaps'])}")
