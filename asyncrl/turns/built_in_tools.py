"""The built-in tools: `calculator`, exact arithmetic of bounded size; `python`, a model's code in a sandbox
session of its own (sandbox/session.py).

Whatever the code does is text that the model reads. A sandbox that fails or refuses is
EnvironmentUnavailable, a FAULT in the end. The session begins with the first call and ends with the tool, or
with its process."""

import ast
import operator
import re
from fractions import Fraction
from typing import Annotated

from asyncrl.turns.environment import EnvironmentUnavailable, Recovery
from sandbox.command import MEBIBYTE
from sandbox.interpreter import find_interpreter
from sandbox.result import SandboxError
from sandbox.session import Session, SessionLimits, SessionResult
from sandbox.settings import SandboxSettings
from verifiers.plugins import Bounds

NO_OUTPUT = "(no output)"
_CALLS_OF_A_TRAJECTORY = 20
_FENCED = re.compile(
    r"\A\s*(`{3,})[ \t]*(?:python3?|py)?[ \t]*\n(.*?)(?:\n[ \t]*\1`*\s*|\Z)\Z", re.DOTALL | re.I
)
# Where an object lies in memory says nothing, and a replay would differ by it.
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,16}\b")


class PythonTool:
    """Runs Python code and returns what it prints and the value of its last line, if that is an expression.
    Variables, functions, imports and files are kept between calls. numpy is installed. There is no internet,
    no keyboard input and no display.

    Args:
        code: The Python code to run.
    """

    recovery = Recovery.REPLAYABLE
    """For a tool that keeps its state; a fresh one is STATELESS."""

    def __init__(
        self,
        fresh: bool = False,
        timeout_seconds: Annotated[float, Bounds(0.1, 3600)] = 8.0,
        memory_mib: Annotated[int, Bounds(64, 1 << 20)] = 512,
        seed: int = 0,
    ) -> None:
        """fresh: each call has a new interpreter, and nothing is kept. timeout_seconds, memory_mib: of one
        call, and of all processes together. seed: of `random` and `numpy.random`. Raises ValueError for an
        interpreter that cannot be run."""
        self._is_fresh, self._seed = fresh, seed
        total_seconds = _CALLS_OF_A_TRAJECTORY * timeout_seconds
        self._limits = SessionLimits(
            call_seconds=timeout_seconds,
            total_seconds=total_seconds,
            cpu_seconds=max(1.0, total_seconds),
            memory_bytes=memory_mib * MEBIBYTE,
        )
        self._settings = SandboxSettings()
        # Asked once, here: processes that are forked with this tool need not start an interpreter for it.
        find_interpreter(self._settings.python, self._settings.packages)
        self._session: Session | None = None
        if fresh:
            self.recovery = Recovery.STATELESS
            self.__doc__ = (PythonTool.__doc__ or "").replace(
                "Variables, functions, imports and files are kept between calls.",
                "Each call starts from nothing: variables, imports and files of earlier calls are gone.",
            )

    def __call__(self, code: str) -> str:
        """Raises EnvironmentUnavailable when the sandbox fails or refuses."""
        try:
            if self._session is None:
                self._session = Session.open(
                    self._limits, is_fresh=self._is_fresh, seed=self._seed, settings=self._settings
                )
            return told(self._session.run(unfenced(code)))
        except SandboxError as error:
            raise EnvironmentUnavailable(f"the sandbox of the tool python: {error}") from error

    def close(self) -> None:
        """Ends the session; nothing of it is left."""
        if self._session is not None:
            self._session.close()


def unfenced(code: str) -> str:
    """Code without the Markdown fence that models write around it."""
    found = _FENCED.match(code)
    return found[2] if found else code


def told(result: SessionResult) -> str:
    """Words for the model. The same for the same run: no times, no addresses."""
    parts = [result.stdout.rstrip("\n"), result.value or "", result.traceback.rstrip("\n")]
    text = _ADDRESS.sub("at 0x...", "\n".join(part for part in parts if part))
    notes = []
    if result.num_threads:
        noun = "thread" if result.num_threads == 1 else "threads"
        notes.append(f"[{result.num_threads} {noun} of the code not finished: paused until the next call]")
    if result.lost:
        why = result.lost[:1].upper() + result.lost[1:]
        notes.append(f"[{why}. All variables are lost; the next call starts a new interpreter.]")
    elif result.limit:
        notes.append(f"[Not run: {result.limit}.]")
    return "\n".join(part for part in (text, *notes) if part) or NO_OUTPUT


MAX_DIGITS = 400
_TWO = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculator(expression: str) -> str:
    """Works out an arithmetic expression, such as 12 * (3 + 4).

    Args:
        expression: Numbers, parentheses and + - * / // % **.
    """
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{expression[:80]!r} is no arithmetic expression") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.12g}"


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return -_value(node.operand) if isinstance(node.op, ast.USub) else _value(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _TWO:
            return _bounded(Fraction(_TWO[type(node.op)](left, right)))
    raise ValueError("only numbers, parentheses and + - * / // % ** are allowed")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("an exponent must be a whole number")
    digits = max(len(str(abs(base.numerator))), len(str(base.denominator)))
    if abs(exponent) * digits > 2 * MAX_DIGITS:
        raise ValueError(f"the result would have more than {MAX_DIGITS} digits")
    return _bounded(Fraction(base ** int(exponent)))


def _bounded(value: Fraction) -> Fraction:
    # Bits, because writing a huge number out takes long.
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 4 * MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return value
