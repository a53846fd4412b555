"""`asyncrl sandbox doctor`: what isolation this machine offers to untrusted programs."""

import argparse
import asyncio
import dataclasses
import json
import sys
from dataclasses import replace

from asyncrl.commands.pages import say_failure
from asyncrl.errors import InputError
from sandbox.doctor import examine, report
from sandbox.result import SandboxError, Tier
from sandbox.settings import SandboxSettings

HELP = "See what isolation this machine offers to untrusted programs."
EXAMPLES = ("asyncrl sandbox doctor", "asyncrl sandbox doctor --tier landlock --json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommand and its options."""
    commands = parser.add_subparsers(dest="sandbox_command", metavar="COMMAND", required=True)
    doctor = commands.add_parser("doctor", help="say which layers this machine enforces")
    doctor.add_argument("--python", default=sys.executable, metavar="PATH", help="interpreter of programs")
    doctor.add_argument("--tier", choices=["namespaces", "landlock"], help="use this tier or refuse")
    doctor.add_argument(
        "--allow-unsafe", action="store_true", help="where there is no isolation, run with rlimits only"
    )
    doctor.add_argument("--json", action="store_true", help="print tier, layers and gaps as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """0 with a usable tier; 1 when the sandbox cannot run anything. Raises InputError."""
    try:
        if arguments.json:
            return _print_json(_settings(arguments))
        tier, lines = report(_settings(arguments))
    except (OSError, ValueError) as error:
        raise InputError(f"asyncrl sandbox: {error}") from error
    except SandboxError as error:
        return say_failure(error, has_page=not arguments.json)
    print("\n".join(lines))
    return 0 if tier is not None else 1


def _print_json(settings: SandboxSettings) -> int:
    tier, layers, gaps = asyncio.run(examine(settings))
    content = {"tier": tier, "layers": [dataclasses.asdict(layer) for layer in layers], "gaps": gaps}
    print(json.dumps(content, indent=1))
    return 0 if tier is not None else 1


def _settings(arguments: argparse.Namespace) -> SandboxSettings:
    settings = SandboxSettings(workers=1, python=arguments.python, allow_unsafe=arguments.allow_unsafe)
    return replace(settings, tiers=(Tier(arguments.tier),)) if arguments.tier else settings
