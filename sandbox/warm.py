"""Runs a Python script inside an interpreter that is already up, as `python script.py` would.

Called in a forked, already confined process, which it ends. The script may tamper with anything in its
process: nothing here decides about it, and the process holds nothing of another run."""

import atexit
import builtins
import os
import random
import sys
import threading
import traceback
import types
from collections.abc import Callable

PRELOADED = """
abc ast bisect builtins collections collections.abc contextlib copy dataclasses datetime decimal enum
fractions functools heapq io itertools json math numbers operator random re selectors socket string textwrap
time types typing warnings linecache traceback threading atexit
""".split()
"""Imported once before the first run: what most programs and the code verifier's judge import."""


def preload(extra: list[str]) -> None:
    """Imports the common modules, and prepares what `site` would."""
    for name in [*PRELOADED, *extra]:
        __import__(name)
    import site

    site.setquit()
    site.setcopyright()
    site.sethelper()


def open_standard_streams() -> None:
    """sys.stdin, stdout and stderr over descriptors 0 to 2, whatever these will be: done
    once, for all runs."""
    reading, writing = os.pipe()
    kept = [os.dup(number) for number in range(3)]
    # Made over pipes, so that none of them takes itself for seekable.
    for number, source in enumerate((reading, writing, writing)):
        os.dup2(source, number)
    # As the interpreter opens them in a UTF-8 locale: undecodable input survives, stderr never fails.
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    for number, source in enumerate(kept):
        os.dup2(source, number)
    for descriptor in (reading, writing, *kept):
        os.close(descriptor)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _execute(run: Callable[[dict[str, object]], None], namespace: dict[str, object]) -> int:
    try:
        run(namespace)
        return 0
    except SystemExit as stop:
        return _exit_code(stop)
    except BaseException as error:
        frames = error.__traceback__
        # Without this function's and that of `run`.
        for _ in range(2):
            frames = frames.tb_next if frames else None
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return 1


def _finish() -> None:
    # In the order of the interpreter's own shutdown: threads, exit handlers, streams.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def run_script(path: str, argv: list[str], search: list[str]) -> None:
    """Runs the script as __main__ and ends the process; never returns."""

    def run(namespace: dict[str, object]) -> None:
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), namespace)

    run_main(run, argv, [os.path.dirname(path), *search], path)


def run_main(
    run: Callable[[dict[str, object]], None], argv: list[str], search: list[str], path: str | None = None
) -> None:
    """Calls `run` with the namespace of a new __main__, whose file is `path`, and ends the process."""
    code, leave = 1, os._exit
    try:
        sys.argv = argv
        # Each run is a copy of one interpreter, and must not draw the same numbers.
        random.seed()
        # The frames below the script are not its own: it may recurse as deep as in a new interpreter.
        sys.setrecursionlimit(sys.getrecursionlimit() + _depth())
        sys.path[:] = search
        main = types.ModuleType("__main__")
        if path is not None:
            main.__file__ = path
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        code = _execute(run, main.__dict__)
        _finish()
    except BaseException:
        traceback.print_exc()
        code = code or 120
    finally:
        leave(code)
