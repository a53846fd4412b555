"""The part of pytest that tests of programs use, for the judge's box, which has no packages: raises, approx,
fail, mark.parametrize and the fixture capsys. Given to tests under the name pytest."""

import io
import re
import sys
import types
from collections import namedtuple
from typing import Any

_Captured = namedtuple("_Captured", "out err")


class _Raises:
    def __init__(self, kinds: Any, match: str | None) -> None:
        self._kinds, self._match = kinds, match
        self.value: Any = None
        self.type: Any = None

    def __enter__(self) -> "_Raises":
        return self

    def __exit__(self, kind: Any, error: Any, frames: Any) -> bool:
        if error is None:
            raise AssertionError(f"DID NOT RAISE {self._kinds}")
        if not isinstance(error, self._kinds):
            return False
        if self._match is not None and not re.search(self._match, str(error)):
            raise AssertionError(f"{str(error)[:100]!r} does not match {self._match[:100]!r}")
        self.value, self.type = error, kind
        return True


def raises(expected_exception: Any, *call: Any, match: str | None = None, **keywords: Any) -> Any:
    """As pytest.raises: a context, or with a function and its arguments a call."""
    context = _Raises(expected_exception, match)
    if not call:
        return context
    with context:
        call[0](*call[1:], **keywords)
    return context


class approx:
    """As pytest.approx, of numbers and lists, tuples and dicts of them."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:
        self._expected, self._rel, self._abs = expected, rel, abs

    def __eq__(self, actual: object) -> bool:
        return self._same(self._expected, actual)

    def __repr__(self) -> str:
        return f"approx({self._expected!r})"

    def _same(self, expected: Any, actual: Any) -> bool:
        if isinstance(expected, dict):
            if not isinstance(actual, dict) or expected.keys() != actual.keys():
                return False
            return all(self._same(expected[key], actual[key]) for key in expected)
        if isinstance(expected, (list, tuple)):
            if not isinstance(actual, (list, tuple)) or len(expected) != len(actual):
                return False
            return all(map(self._same, expected, actual))
        if isinstance(actual, bool) or not isinstance(actual, (int, float, complex)):
            return bool(type(actual).__module__ in ("decimal", "fractions") and expected == actual)
        if expected == actual:
            return True
        absolute = 1e-12 if self._abs is None else self._abs
        relative = 1e-6 if self._rel is None else self._rel
        if self._rel is None and self._abs is not None:
            relative = 0.0
        distance = abs(expected - actual)
        return bool(distance <= max(absolute, relative * abs(expected)) < float("inf"))


def fail(reason: str = "", pytrace: bool = True) -> None:
    raise AssertionError(reason)


def main(*arguments: Any, **keywords: Any) -> int:
    """Nothing: the judge runs the collected tests itself."""
    return 0


def _parametrize(argnames: Any, argvalues: Any, **keywords: Any) -> Any:
    words = [word.strip() for word in argnames.split(",")] if isinstance(argnames, str) else list(argnames)
    rows = [dict(zip(words, row if len(words) > 1 else [row], strict=True)) for row in argvalues]

    def mark(function: Any) -> Any:
        function.asyncrl_cases = [*getattr(function, "asyncrl_cases", []), rows]
        return function

    return mark


mark = types.SimpleNamespace(parametrize=_parametrize)


class _Capsys:
    def __init__(self) -> None:
        sys.stdout = self._stream = io.StringIO()

    def readouterr(self) -> Any:
        """Output since the last call."""
        text = self._stream.getvalue()
        self._stream.seek(0)
        self._stream.truncate()
        return _Captured(text, "")


def run(test: Any) -> None:
    """Calls a test function with each combination of its parameters; waits for a coroutine."""
    combinations: list[dict[str, Any]] = [{}]
    for rows in getattr(test, "asyncrl_cases", []):
        combinations = [{**row, **chosen} for chosen in combinations for row in rows]
    if not combinations:
        raise AssertionError("it has no cases")
    code = getattr(test, "__code__", None)
    wants_output = code is not None and "capsys" in code.co_varnames[: code.co_argcount]
    for chosen in combinations:
        before = sys.stdout
        result = test(**chosen, **({"capsys": _Capsys()} if wants_output else {}))
        if isinstance(result, types.CoroutineType):
            import asyncio

            asyncio.run(result)
        sys.stdout = before
