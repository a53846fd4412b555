"""The interpreter of a session, inside its box: runs one text of Python after another in the same namespace.

A script of the program's own Python, from 3.9 on, which imports the standard library only. The code that it
runs shares its process and may tamper with all of it, so nothing here is trusted: the worker measures, bounds
and ends it from outside, and reads answers as bounded bytes. Each carries the nonce of its request, so that
none can be prepared before its call; output is never searched for marks. Code that takes its interpreter over
can answer a call during which it runs, and so lie about itself, which it can by printing too.
"""

import ast
import builtins
import contextlib
import fcntl
import importlib.util
import io
import linecache
import os
import random
import struct
import sys
import threading
import traceback
import types

READY = b"ready"
NONCE_BYTES = 16
ANSWER = struct.Struct("<qqq")
"""After the nonce: bytes of the value (-1: none), bytes of the traceback, threads that still run. The two
texts follow."""
MAX_CODE_BYTES = 1 << 17
MAX_TEXT_CHARACTERS = 8192
BROKEN = 70
"""Exit code of an interpreter that the code has made unusable."""
NO_INPUT = "there is no input here: write the values into the code"
NO_DISPLAY = "no display: print numbers instead"
_FILE = "<call {}>"
_LINK = 3
_FIRST_DESCRIPTOR, _NUM_DESCRIPTORS = 100, 300
"""Where descriptors are kept that code must not close by mistake."""
_PLOTTING = ("matplotlib", "seaborn", "plotly", "turtle", "tkinter")
# What code that ran earlier may have replaced by the time it is needed.
_read, _write, _dup2, _getpid, _leave = os.read, os.write, os.dup2, os.getpid, os._exit
_exec, _eval, _repr, _Anything = exec, eval, repr, BaseException


class _NoInput(io.TextIOBase):
    """sys.stdin of a session."""

    def readable(self) -> bool:
        return True

    def read(self, size: "int | None" = -1, /) -> str:
        raise EOFError(NO_INPUT)

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        raise EOFError(NO_INPUT)


def _no_input(prompt: object = "") -> str:
    raise EOFError(NO_INPUT)


def _no_display(*_: object, **__: object) -> None:
    raise RuntimeError(NO_DISPLAY)


class Imports:
    """Finder of modules that a session sees otherwise: seeded, or without a display."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._is_searching = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if self._is_searching or name not in ("numpy.random", "matplotlib.pyplot", *_PLOTTING):
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is None or spec.loader is None:
            if name in _PLOTTING:
                raise ModuleNotFoundError(f"No module named {name!r}; {NO_DISPLAY}", name=name)
            return spec
        load = spec.loader.exec_module

        def load_and_change(module: types.ModuleType) -> None:
            load(module)
            if name == "numpy.random":
                module.__dict__["seed"](self._seed)
            if name == "matplotlib.pyplot":
                module.__dict__["show"] = _no_display

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


def cut(text: str, limit: int) -> str:
    """The text, or its head and tail with a mark between them."""
    # An exact str, which a __repr__ need not return; join makes one of any.
    text = "".join((text,))
    num_omitted = len(text) - limit
    if num_omitted <= 0:
        return text
    head, tail = text[: limit - limit // 2], text[len(text) - limit // 2 :]
    return f"{head}\n[... {num_omitted} characters were left out here ...]\n{tail}"


def _keep_own_frames(shown: traceback.TracebackException) -> None:
    """Leaves the frames of the session's code, in the exception and those that led to it."""
    pending, seen = [shown], set()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        own = [frame for frame in each.stack if frame.filename.startswith("<call ")]
        each.stack = traceback.StackSummary.from_list(own)
        further = (each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ()))
        pending += [one for one in further if one is not None]


def _described(error: BaseException) -> str:
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    _keep_own_frames(shown)
    return "".join(shown.format())


class _Console:
    def __init__(self, seed: int) -> None:
        self._link = self._kept_aside(_LINK)
        os.close(_LINK)
        _dup2(1, 2)
        self._output = self._kept_aside(1)
        self._pid = _getpid()
        self._num_calls = 0
        self._recursion_limit = sys.getrecursionlimit()
        self._streams: list[io.TextIOWrapper] = []
        random.seed(seed)
        sys.meta_path.insert(0, Imports(seed))  # type: ignore[arg-type]
        builtins.input = _no_input
        self._builtins = dict(vars(builtins))
        self._restore_builtins = vars(builtins).update
        self._main = types.ModuleType("__main__")
        self._main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self._main
        sys.argv = [""]

    @staticmethod
    def _kept_aside(descriptor: int) -> int:
        place = _FIRST_DESCRIPTOR + int.from_bytes(os.urandom(2), "little") % _NUM_DESCRIPTORS
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, place)

    def serve(self) -> None:
        """Answers requests until the worker hangs up."""
        _write(self._link, READY)
        while True:
            request = _read(self._link, NONCE_BYTES + MAX_CODE_BYTES)
            if not request:
                return
            value, trace = self._run(request[NONCE_BYTES:].decode("utf-8", "surrogatepass"))
            texts = [text.encode("utf-8", "backslashreplace") for text in (value or "", trace)]
            size = -1 if value is None else len(texts[0])
            head = ANSWER.pack(size, len(texts[1]), threading.active_count() - 1)
            _write(self._link, request[:NONCE_BYTES] + head + b"".join(texts))

    def _run(self, source: str) -> "tuple[str | None, str]":
        """(repr of the last expression's value, traceback)."""
        self._num_calls += 1
        self._open_streams()
        value, trace = None, ""
        try:
            found = self._execute(source, _FILE.format(self._num_calls))
            if found is not None:
                value = _repr(found)
        except _Anything as error:
            self._restore()
            trace = _described(error)
        self._restore()
        if _getpid() != self._pid:
            # A child that the code has forked and that came to the code's end.
            with contextlib.suppress(OSError):
                sys.stderr.write(trace)
            self._flush()
            _leave(1 if trace else 0)
        self._flush()
        if value is not None:
            value = cut(value, MAX_TEXT_CHARACTERS)
        return value, cut(trace, MAX_TEXT_CHARACTERS)

    def _execute(self, source: str, name: str) -> object:
        """Runs the code; the value of its last statement where that is an expression."""
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        tree = ast.parse(source, name)
        final, last = tree.body[-1] if tree.body else None, None
        if isinstance(final, ast.Expr):
            tree.body.pop()
            last = compile(ast.Expression(final.value), name, "eval", dont_inherit=True)
        _exec(compile(tree, name, "exec", dont_inherit=True), self._main.__dict__)
        return None if last is None else _eval(last, self._main.__dict__)

    def _open_streams(self) -> None:
        """Standard streams that work, whatever an earlier call did to them."""
        if not self._streams or any(stream.closed for stream in self._streams):
            # By lines: what was printed before an interpreter is killed is not lost.
            self._streams = [
                open(number, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
                for number in (1, 2)
            ]
        sys.stdin = _NoInput()
        sys.stdout, sys.stderr = self._streams

    def _restore(self) -> None:
        """Undoes what would keep this script from working."""
        self._restore_builtins(self._builtins)
        sys.settrace(None)
        sys.setprofile(None)
        sys.setrecursionlimit(self._recursion_limit)
        _dup2(self._output, 1)
        _dup2(self._output, 2)

    def _flush(self) -> None:
        for stream in self._streams:
            if not stream.closed:
                stream.flush()


def main() -> None:
    """Becomes the interpreter; ends the process."""
    code = BROKEN
    try:
        os.unlink(__file__)
        _Console(int(sys.argv[1])).serve()
        code = 0
    finally:
        _leave(code)


if __name__ == "__main__":
    main()
