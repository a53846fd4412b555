"""The `asyncrl` command: imports only the subcommand that it runs, so that each starts fast.

Exit codes: 0 done, 1 the run failed, 2 something the user can correct, 130 Ctrl-C, 129 SIGHUP and 143 SIGTERM
(a run: 130), 141 closed output pipe (a run: 1); 1 where the output takes nothing more.
"""

import atexit
import contextlib
import errno
import gc
import importlib
import importlib.metadata
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from asyncrl.commands.pages import OF_FAILURES, page_about, page_of
from asyncrl.commands.parser import parse, parser_of
from asyncrl.errors import InputError, did_you_mean
from asyncrl.system.network import loopback_direct
from asyncrl.system.paths import unusable_path
from asyncrl.system.places import check_distribution
from asyncrl.system.streams import Caller, discard_output, guard_streams, take_caller

OF_ALL_COMMANDS = "docs/README.md"
COMMANDS = {
    "init": "write a first recipe: for a CPU at once, or for a model, GPUs and data",
    "doctor": "say what this machine lacks for runs, the consequence and the fix",
    "train": "train with a recipe; run again to resume",
    "chain": "train the stages of a chain, one after the other",
    "eval": "compare a model and its checkpoints on benchmarks and held-out tasks",
    "check": "validate a recipe and its data, print what would run",
    "prompt": "print what the model sees of one row, and what stops it",
    "keys": "print a recipe's keys: kind, default, documentation",
    "plan": "print memory, tokens per step and expected staleness of a recipe",
    "chat": "talk to a checkpoint",
    "view": "browse the trajectories of a run",
    "difficulty": "measure how often the model solves each training row",
    "select": "write a run's responses as data for SFT and DPO",
    "audit": "grade a run's responses again by another verifier: is it hacking?",
    "compare": "put runs side by side, and say whether one beats another",
    "report": "write the report of runs: page, JSON, Markdown",
    "reproduce": "train a step of a run again and compare",
    "track": "send a run to its trackers",
    "journal": "account for a run's tokens, groups and trajectories",
    "serve": "start a rollout server for a run on another machine",
    "status": "print what a run does now, or how it ended",
    "servers": "list, add or remove the rollout servers of a live run",
    "verify": "grade rows of answers with a verifier",
    "verify-data": "check a recipe's data set against its verifier",
    "algorithms": "list the loss terms that a recipe may name",
    "sandbox": "see what isolation of programs this machine enforces",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; returns its exit code."""
    if argv is None:
        # Python collects garbage as it ends, which takes longer than small commands do.
        atexit.register(gc.freeze)
    caller = take_caller(os.environ)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"asyncrl {importlib.metadata.version('asyncrl')}")
        return 0
    if not arguments or arguments[0] not in COMMANDS:
        return _usage(arguments)
    guard_streams()
    if not _is_somewhere():
        return 2
    if caller is not None:
        caller.watch()
    try:
        check_distribution()
    except InputError as error:
        return _refused(error, caller, arguments, arguments[0])
    os.environ.update(loopback_direct(os.environ))
    with _ends_as_ctrl_c() as received:
        code = _run(arguments[0], arguments[1:], caller)
    return 128 + received[0] if received else code


def _run(name: str, words: Sequence[str], caller: Caller | None) -> int:
    try:
        # Within the try: some commands import for a second, in which Ctrl-C must not end in a traceback.
        command = importlib.import_module(f"asyncrl.commands.{name.replace('-', '_')}")
        try:
            code: int = command.run(parse(parser_of(name, command), words))
        except InputError as error:
            code = _refused(error, caller, words, name)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        discard_output()
        return 128 + signal.SIGPIPE
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            discard_output()
            print(f"The output accepts no more: {error.strerror}.\nRead: {OF_FAILURES}", file=sys.stderr)
            return 1
        if (refusal := unusable_path(error)) is None:
            raise
        return _refused(refusal, caller, words, name)
    return code


def _refused(error: InputError, caller: Caller | None, words: Sequence[str], name: str) -> int:
    """The exit code of what the user can correct. The page about it is for readers, not for programs; that of
    the command `name` where none is about the error."""
    print(error, file=sys.stderr)
    if caller is not None:
        caller.tell(error)
    if "--json" not in words:
        page = page_about(error) or page_of(f"asyncrl.commands.{name.replace('-', '_')}")
        print(f"Read: {page}", file=sys.stderr)
    return 2


def _is_somewhere() -> bool:
    """Whether the current folder still exists; says so where it does not."""
    try:
        os.getcwd()
    except FileNotFoundError:
        print(
            "The current folder was deleted. Change to one that exists, then run this again.\n"
            f"Read: {OF_ALL_COMMANDS}",
            file=sys.stderr,
        )
        return False
    return True


@contextlib.contextmanager
def _ends_as_ctrl_c() -> Iterator[list[int]]:
    """SIGHUP and SIGTERM interrupt a command as Ctrl-C does; yields the ones received.

    A run handles its signals itself (launch/local.py). What `nohup` ignores stays ignored.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A script's background command ignores Ctrl-C from birth; other signals still end it.
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    taken = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number in taken:
            signal.signal(number, before[number])


def _usage(arguments: list[str]) -> int:
    is_question = not arguments or arguments[0] in ("-h", "--help", "help")
    stream = sys.stdout if is_question else sys.stderr
    if not is_question:
        print(f'asyncrl has no command "{arguments[0]}".{did_you_mean(arguments[0], COMMANDS)}', file=stream)
    print("usage: asyncrl COMMAND [options]\n", file=stream)
    for name, text in COMMANDS.items():
        print(f"  {name:<12} {text}", file=stream)
    if not is_question:
        print(f"\nRead: {OF_ALL_COMMANDS}", file=stream)
    return 0 if is_question else 2


if __name__ == "__main__":
    sys.exit(main())
