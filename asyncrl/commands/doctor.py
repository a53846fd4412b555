"""`asyncrl doctor`: what this machine has, what is lost by what it lacks, and how to get it."""

import argparse
import dataclasses
import json
import sys
import textwrap
from pathlib import Path

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
from asyncrl.launch.doctor.probe import Finding, Probe, State, examine, worst
from asyncrl.launch.doctor.software import SANDBOX_SECONDS, containers, locked, owners, pins, sandbox
from asyncrl.system.gpus import ASK_SECONDS
from asyncrl.system.paths import RUNS
from asyncrl.system.places import cache_folder

HELP = (
    "Look at this machine: CPU, memory, GPUs, disks, network, clock, packages, sandbox. A line each: ok, "
    "lost (runs work, and lack something) or broken, with the consequence and the fix. Starts no run, "
    "changes nothing; asks the model hub for one page."
)
EXAMPLES = ("asyncrl doctor", "asyncrl doctor --json | jq '.findings[] | select(.state != \"ok\")'")
WIDTH = 110
NAMES = 17
"""Columns of the name."""
READ_SECONDS = 10.0
"""For a look at files of the kernel."""
ASKED_SECONDS = 20.0
"""For disks, names and addresses that others answer for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print all findings as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """0 where nothing is broken, 1 where something is."""
    found: list[Finding] = []
    for finding in examine(probes(), waiting=_wait):
        found.append(finding)
        if not arguments.json:
            print(shown(finding), flush=True)
    state = worst(found)
    if arguments.json:
        content = {"state": state, "findings": [dataclasses.asdict(finding) for finding in found]}
        print(json.dumps(content, indent=1))
    else:
        counts = {each: sum(finding.state is each for finding in found) for each in State}
        print(", ".join(f"{count} {each}" for each, count in counts.items()))
    return 1 if state is State.BROKEN else 0


def probes() -> list[Probe]:
    """All probes, in the order of their lines: what can stop every run comes first."""
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
        Probe("current folder", lambda: disk(here, holds_runs=True), ASKED_SECONDS, State.BROKEN),
        Probe("runs", lambda: disk(here / RUNS, holds_runs=True), ASKED_SECONDS, State.BROKEN),
        Probe("hub cache", lambda: disk(hub_cache()), ASKED_SECONDS),
        Probe("asyncrl's cache", lambda: disk(cache_folder("")), ASKED_SECONDS),
        Probe("ports", ports, ASKED_SECONDS, State.BROKEN),
        Probe("host name", host_name, ASKED_SECONDS),
        Probe("clock", clock, READ_SECONDS),
        Probe("proxies", proxies, ASKED_SECONDS),
        Probe("hub", hub, ASKED_SECONDS),
        Probe("sandbox", sandbox, SANDBOX_SECONDS + READ_SECONDS),
        Probe("containers", containers, ASKED_SECONDS),
    ]


def shown(finding: Finding) -> str:
    """The finding as lines; consequence and fix stand under what was found."""
    indent = " " * (8 + NAMES)
    first = f"{finding.state:<7} {finding.what:<{NAMES - 1}} {finding.found}"
    lines = [first]
    for words in (finding.consequence, finding.fix):
        if words:
            lines += textwrap.wrap(
                words,
                WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def _wait(probe: Probe) -> None:
    print(f"looking at {probe.what} ... (at most {probe.seconds:.0f} s)", file=sys.stderr, flush=True)
