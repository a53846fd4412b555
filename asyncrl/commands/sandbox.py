"""`asyncrl sandbox run|doctor`: one untrusted program in the sandbox, and what isolation this machine offers.

Owns the command line only. `run` prints the result as JSON and ends as the program did: with its exit code,
128 and the number of the signal that ended it, 124 at the time limit, 137 at the memory or output limit.
Without a result on standard output the failure is the sandbox's (1) or the caller's (2)."""

import argparse
import asyncio
import base64
import json
import os
import signal
import stat
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from asyncrl.commands import standard_input
from sandbox.doctor import report
from sandbox.languages import LANGUAGES, find_language
from sandbox.limits import MEBIBYTE, Limits
from sandbox.pool import SandboxPool
from sandbox.result import Result, SandboxError, Status, Tier
from sandbox.settings import SandboxSettings

HELP = "Run an untrusted program in the sandbox, or see what isolation this machine offers."

_BY_SUFFIX = {".py": "python", ".cpp": "cpp", ".cc": "cpp", ".c": "c", ".sh": "bash"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two subcommands and their options."""
    commands = parser.add_subparsers(dest="sandbox_command", metavar="COMMAND", required=True)
    run_parser = commands.add_parser("run", help="run a program, print its result as one JSON object")
    run_parser.add_argument("program", metavar="PROGRAM", help="source file, or - for standard input")
    run_parser.add_argument("arguments", metavar="ARG", nargs="*", help="the program's own arguments")
    run_parser.add_argument(
        "--lang", help=f"{', '.join(sorted(LANGUAGES))}; by default from the file's suffix"
    )
    defaults = Limits()
    megabytes = "MiB"
    run_parser.add_argument("--cpu-seconds", type=float, default=defaults.cpu_seconds, metavar="N")
    run_parser.add_argument("--wall-seconds", type=float, default=defaults.wall_seconds, metavar="N")
    for name in ("memory", "disk", "output"):
        default = getattr(defaults, f"{name}_bytes") / MEBIBYTE
        run_parser.add_argument(f"--{name}-mb", type=float, default=default, metavar="N", help=megabytes)
    run_parser.add_argument("--processes", type=int, default=defaults.processes, metavar="N")
    run_parser.add_argument(
        "--stdin", type=Path, metavar="FILE", help="the program's standard input; else what is piped in"
    )
    run_parser.add_argument(
        "--fresh", action="store_true", help="start a new interpreter, not a fork of a warm one"
    )
    doctor_parser = commands.add_parser("doctor", help="say which layers this machine enforces")
    for subparser in (run_parser, doctor_parser):
        subparser.add_argument(
            "--python", default=sys.executable, metavar="PATH", help="interpreter of programs"
        )
        subparser.add_argument("--tier", choices=["namespaces", "landlock"], help="use this tier or refuse")
        subparser.add_argument(
            "--allow-unsafe", action="store_true", help="where there is no isolation, run with rlimits only"
        )


def _settings(arguments: argparse.Namespace) -> SandboxSettings:
    settings = SandboxSettings(workers=1, python=arguments.python, allow_unsafe=arguments.allow_unsafe)
    return replace(settings, tiers=(Tier(arguments.tier),)) if arguments.tier else settings


def _limits(arguments: argparse.Namespace) -> Limits:
    return Limits(
        cpu_seconds=arguments.cpu_seconds,
        wall_seconds=arguments.wall_seconds,
        memory_bytes=int(arguments.memory_mb * MEBIBYTE),
        disk_bytes=int(arguments.disk_mb * MEBIBYTE),
        output_bytes=int(arguments.output_mb * MEBIBYTE),
        processes=arguments.processes,
    )


def _language(arguments: argparse.Namespace) -> str:
    name = arguments.lang or _BY_SUFFIX.get(Path(arguments.program).suffix, "python")
    find_language(name, LANGUAGES)
    return str(name)


async def _run(arguments: argparse.Namespace, source: bytes, stdin: bytes) -> Result:
    limits, lang = _limits(arguments), _language(arguments)
    async with SandboxPool(_settings(arguments)) as sandbox:
        command = await sandbox.build(source, lang=lang, limits=limits, fresh=arguments.fresh)
        if isinstance(command, Result):
            return command
        return await sandbox.run(replace(command, argv=(*command.argv, *arguments.arguments), stdin=stdin))


def as_json(result: Result) -> dict[str, Any]:
    """The result's fields; output that is no UTF-8 text is also given in base64."""
    fields = asdict(result)
    del fields["files"]
    for name in ("stdout", "stderr"):
        content: bytes = fields[name]
        fields[name] = content.decode("utf-8", "replace")
        if fields[name].encode() != content:
            fields[f"{name}_base64"] = base64.b64encode(content).decode()
    return fields


def _read(path: str | Path) -> bytes:
    return sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()


def _piped(program: str) -> bytes:
    """Input that is piped or redirected into this command, unless the program itself came that way; never
    waits for a person to type."""
    kind = os.fstat(standard_input.FILE).st_mode
    if program == "-" or not (stat.S_ISFIFO(kind) or stat.S_ISREG(kind) or stat.S_ISSOCK(kind)):
        return b""
    with open(standard_input.FILE, "rb", closefd=False) as stream:
        return stream.read()


def run(arguments: argparse.Namespace) -> int:
    """The program's exit code, or 0 with a usable tier; 1 when the sandbox cannot run anything,
    2 for bad input."""
    try:
        if arguments.sandbox_command == "doctor":
            tier, lines = report(_settings(arguments))
            print("\n".join(lines))
            return 0 if tier is not None else 1
        source = _read(arguments.program)
        stdin = _read(arguments.stdin) if arguments.stdin else _piped(arguments.program)
        result = asyncio.run(_run(arguments, source, stdin))
    except (OSError, ValueError) as error:
        print(f"asyncrl sandbox: {error}", file=sys.stderr)
        return 2
    except SandboxError as error:
        print(f"asyncrl sandbox: the sandbox failed, not the program: {error}", file=sys.stderr)
        return 1
    print(json.dumps(as_json(result)))
    return _exit_code(result)


def _exit_code(result: Result) -> int:
    if result.status is Status.TIME_LIMIT:
        return 124
    if result.status in (Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT):
        return 128 + signal.SIGKILL
    if result.status is Status.REFUSED:
        return 1
    if result.signal is not None:
        return 128 + result.signal
    return result.exit_code or 0
