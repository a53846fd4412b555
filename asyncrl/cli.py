"""The `asyncrl` command: picks a subcommand and imports it only then, so that each starts as fast as it can.

Exit codes: 0 done, 1 the run failed, 2 something the user can mend, 130 stopped by Ctrl-C.
"""

import argparse
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence

COMMANDS = {
    "train": "train by a recipe; run again to resume",
    "eval": "evaluate a recipe's model, or a checkpoint, on its held-out tasks",
    "check": "validate a recipe and its data, print what would run",
    "plan": "print memory, tokens per step and expected staleness of a recipe",
    "chat": "talk to a checkpoint",
    "view": "browse the trajectories of a run",
    "replay": "train a step of a run again and compare every number",
    "journal": "say what became of a run's tokens, groups and trajectories, and why",
    "servers": "list, add or remove the rollout servers of a run while it goes on",
    "verify": "grade rows of answers with a verifier",
    "verify-data": "check a recipe's data set against its verifier",
    "algorithms": "list what a recipe's algorithm section may name",
    "sandbox": "run a program in the sandbox, or see what this machine enforces",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"asyncrl {importlib.metadata.version('asyncrl')}")
        return 0
    if not arguments or arguments[0] not in COMMANDS:
        return _usage(arguments)
    command = importlib.import_module(f"asyncrl.commands.{arguments[0].replace('-', '_')}")
    parser = argparse.ArgumentParser(prog=f"asyncrl {arguments[0]}", description=command.HELP)
    command.add_arguments(parser)
    code: int = command.run(parser.parse_args(arguments[1:]))
    return code


def _usage(arguments: list[str]) -> int:
    is_question = not arguments or arguments[0] in ("-h", "--help", "help")
    stream = sys.stdout if is_question else sys.stderr
    if not is_question:
        print(f'asyncrl has no command "{arguments[0]}".', file=stream)
    print("usage: asyncrl COMMAND [options]\n", file=stream)
    for name, text in COMMANDS.items():
        print(f"  {name:<12} {text}", file=stream)
    return 0 if is_question else 2


if __name__ == "__main__":
    sys.exit(main())
