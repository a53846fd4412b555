"""`asyncrl doctor`: what this machine has, what is lost by what it lacks, and how to get it."""

import argparse
import dataclasses
import json
import sys
import textwrap

from asyncrl.launch.doctor.catalog import probes
from asyncrl.launch.doctor.probe import Finding, Probe, State, examine, worst

HELP = (
    "Look at this machine: CPU, memory, GPUs, disks, network, clock, packages, sandbox. A line each: ok, "
    "lost (runs work, and lack something) or broken, with the consequence and the fix. Starts no run, "
    "changes nothing; asks the model hub for one page."
)
EXAMPLES = (
    "asyncrl doctor",
    "asyncrl doctor --json | jq '.findings[] | select(.state != \"ok\")'",
)
WIDTH = 110
NAMES = 17
"""Columns of the name."""


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
