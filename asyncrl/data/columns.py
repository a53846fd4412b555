"""Which columns of published rows are prompt, answer and verifier: ready mappings by name, or the user's own.

A mapping names columns, with dots for what is inside of them ("reward_model.ground_truth"); a column whose
own name has the dots comes first. Anything else takes a function of the user, "package.module:name" or
"./file.py:name": row -> row.
"""

import difflib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from asyncrl.errors import InputError
from asyncrl.system.words import as_written
from verifiers.extract import last_box

Row = Mapping[str, Any]
ToRow = Callable[[Row], dict[str, Any]]
"""A published row -> {"prompt": ..., "answer": ...}, with "verifier" and "environment" if it has any. Raises
KeyError for a column that is missing and ValueError for one that holds no answer."""


_MOST_NESTED = 3
"""Objects in one another in which a path is looked for."""


@dataclass(frozen=True, slots=True)
class Columns:
    """`prompt` and `answer` are columns; the answer is what follows the last `answer_after` in it."""

    prompt: str
    answer: str
    answer_after: str | None = None
    is_answer_boxed: bool = False
    """The answer is in the last \\boxed{} of the column."""
    verifier: str | None = None
    """Verifier of all rows, by name. None: the recipe's default, or the column "verifier"."""

    def __call__(self, row: Row) -> dict[str, Any]:
        prompt = column(row, self.prompt)
        try:
            answer = column(row, self.answer)
        except NullColumn as error:
            raise ValueError(str(error)) from None
        if self.answer_after is not None:
            if not isinstance(answer, str) or self.answer_after not in answer:
                raise ValueError(f'"{self.answer}" has no {self.answer_after!r} in front of an answer')
            answer = answer.rpartition(self.answer_after)[2].strip()
        elif self.is_answer_boxed:
            answer = last_box(str(answer))
            if answer is None:
                raise ValueError(f'"{self.answer}" has no \\boxed{{}} that holds an answer')
        made = {"prompt": prompt, "answer": answer}
        if (environment := row.get("environment")) is not None:
            made["environment"] = environment
        verifier = self.verifier or row.get("verifier")
        # A row may have more keys than are read, so only what looks like a slip is refused.
        if verifier is None and (meant := nearest_key("verifier", row, (str, dict))):
            raise InputError(f"the row has {', '.join(map(str, row))}.{meant}")
        return made if verifier is None else {**made, "verifier": verifier}


def column(row: Row, name: str) -> Any:
    """The value at "outer.inner", or at "list.0". Raises KeyError with `name` where it is not there, and
    NullColumn where what should hold it is null."""
    value: Any = row
    parts = parts_of(name, row)
    try:
        for index, part in enumerate(parts):
            if value is None:
                outer = ".".join(parts[:index])
                raise NullColumn(f'"{outer}" is null in this row, so it has no "{name}"')
            if isinstance(value, dict):
                value = value[part]
            else:
                value = value[
                    int(part) if isinstance(value, Sequence) and not isinstance(value, str) else part
                ]
    except NullColumn:
        raise
    except (KeyError, IndexError, TypeError, ValueError):
        raise KeyError(name) from None
    return value


def parts_of(path: str, columns: Container[str]) -> tuple[str, ...]:
    """The column that a path names in rows with `columns`, and the keys inside of it."""
    return (path,) if path in columns else _split(path)


@lru_cache
def _split(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def _text(row: Row, name: str) -> str:
    """A column that becomes a part of the prompt. Raises InputError, also for NaN of a table."""
    value = column(row, name)
    if not isinstance(value, str):
        raise InputError(f'"{name}" is {as_written(value)[:80]}, expected text')
    return value


def _list(row: Row, name: str) -> list[Any]:
    """Raises InputError."""
    value = column(row, name)
    if not isinstance(value, (list, tuple)):
        raise InputError(f'"{name}" is {as_written(value)[:80]}, expected a list')
    return list(value)


def _svamp(row: Row) -> dict[str, Any]:
    question = f"{_text(row, 'Body').rstrip(' .')}. {_text(row, 'Question')}"
    return {"prompt": question, "answer": column(row, "Answer")}


def _mbpp(row: Row) -> dict[str, Any]:
    """The statement and, as the paper gives them to the model, the tests (Austin et al. 2021)."""
    tests = _list(row, "test_list")
    if not all(isinstance(test, str) for test in tests):
        raise InputError(f'"test_list" is {as_written(tests)[:80]}, expected a list of texts')
    text = _text(row, "text" if "text" in row else "prompt")
    setup = row.get("test_setup_code") or "\n".join(map(str, row.get("test_imports") or ()))
    answer: dict[str, Any] = {"tests": tests, "solution": column(row, "code")}
    return {
        "prompt": f"{text}\nYour code should pass these tests:\n\n" + "\n".join(tests),
        "answer": {**answer, "setup": setup} if setup else answer,
        "verifier": "code",
    }


def _humaneval(row: Row) -> dict[str, Any]:
    """The signature with its docstring, to be completed; the tests call `check(entry_point)`."""
    start, entry = _text(row, "prompt"), _text(row, "entry_point")
    return {
        "prompt": f"Complete this function. Answer with the whole function.\n\n```python\n{start}```",
        "answer": {
            "tests": [{"assert": f"{column(row, 'test')}\ncheck({entry})"}],
            "solution": f"{start}{column(row, 'canonical_solution')}",
        },
        "verifier": "code",
    }


def _countdown(row: Row) -> dict[str, Any]:
    """The question of TinyZero; {"target": 98, "nums": [44, 19, 35]} as in Countdown-Tasks-3to4."""
    target, numbers = column(row, "target"), _list(row, "nums")
    return {
        "prompt": f"Using the numbers {numbers}, create an equation that equals {target}. You can use basic "
        "arithmetic operations (+, -, *, /) and each number can only be used once. Show your work in <think> "
        "</think> tags. And return the final answer in <answer> </answer> tags, for example <answer> (1 + 2) "
        "/ 3 </answer>.",
        "answer": {"target": target, "numbers": numbers},
        "verifier": "countdown",
    }


READY: dict[str, ToRow] = {
    "asyncrl": Columns("prompt", "answer"),
    "verl": Columns("prompt", "reward_model.ground_truth"),
    "gsm8k": Columns("question", "answer", answer_after="####"),
    "math": Columns("problem", "answer"),
    "math_solution": Columns("problem", "solution", is_answer_boxed=True),
    "question_answer": Columns("question", "answer"),
    "question_final_answer": Columns("question", "final_answer.0"),
    "svamp": _svamp,
    "mbpp": _mbpp,
    "humaneval": _humaneval,
    "countdown": _countdown,
}
"""Mappings by their name in a recipe's `columns`. DAPO-Math-17k and what verl prepares have those of verl."""


class NullColumn(InputError):
    """A column that should hold others is null."""


class NoAnswer(InputError):
    """The column of a row that should hold its answer holds none."""


def to_row(make: ToRow, row: Row, where: str) -> dict[str, Any]:
    """The row that `make` returns. Raises InputError with the columns that are there, and NoAnswer."""
    try:
        return make(row)
    except KeyError as error:
        missing = str(error.args[0]) if error.args else "?"
        raise InputError(
            f'{where}: no "{missing}"; the row has {", ".join(map(str, row)) or "no keys"}.'
            f"{_advice(missing, row)}"
        ) from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    except ValueError as error:
        raise NoAnswer(f"{where}: {error}") from error
    except (TypeError, IndexError, AttributeError) as error:
        raise InputError(f"{where}: {type(error).__name__}: {error}") from error


def nearest_key(key: str, row: Row, kinds: type | tuple[type, ...] = object) -> str:
    """' Did you mean ...' where the row has a key that is almost `key`, with a value of `kinds`."""
    near = [name for name in near_names(key, tuple(row)) if isinstance(row[name], kinds)]
    return f' Did you mean "{key}" where it says "{near[0]}"?' if near else ""


@lru_cache
def near_names(key: str, names: tuple[object, ...]) -> list[str]:
    """The `names` that are almost `key`; nearest first."""
    return difflib.get_close_matches(key, [name for name in names if isinstance(name, str)], cutoff=0.8)


def _advice(missing: str, row: Row) -> str:
    if near := nearest_key(missing, row):
        return near
    if near_paths := difflib.get_close_matches(missing, list(_paths(row)), n=1, cutoff=0.8):
        return f' Did you mean "{missing}" where it says "{near_paths[0]}"?'
    fitting = [name for name, make in READY.items() if _fits(make, row)]
    if fitting:
        return f" Its columns are those of {' or '.join(fitting)}: set `columns` of the source to that."
    return f" Name its columns in `columns` of the source; ready ones: {', '.join(READY)}."


def _paths(row: Mapping[Any, Any], outer: str = "") -> Iterator[str]:
    """Paths to all that the columns hold, as a mapping names them."""
    for name, value in row.items():
        if outer:
            yield f"{outer}{name}"
        if isinstance(value, dict) and outer.count(".") < _MOST_NESTED:
            yield from _paths(value, f"{outer}{name}.")


def _fits(make: ToRow, row: Row) -> bool:
    try:
        make(row)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError):
        return False
    return True


if TYPE_CHECKING:
    import pyarrow


def names_read(make: ToRow | None, schema: "pyarrow.Schema") -> list[str]:
    """The columns of `schema` that `make` reads, in their order.

    All of them where only `make` knows, where one that it needs is missing (then the error names them all),
    and where rows name verifiers, which may take their columns.
    """
    names: list[str] = schema.names
    if not isinstance(make, Columns) or not all(_has(schema, path) for path in (make.prompt, make.answer)):
        return names
    read = {parts_of(path, names)[0] for path in (make.prompt, make.answer)}
    if make.verifier is None and "verifier" in names:
        return names
    read |= {"environment", *near_names("verifier", tuple(names))}
    return [name for name in names if name in read]


def _has(schema: "pyarrow.Schema", path: str) -> bool:
    import pyarrow.types as kinds

    name, *inner = parts_of(path, schema.names)
    if name not in schema.names:
        return False
    kind = schema.field(name).type
    for part in inner:
        if kinds.is_struct(kind) and kind.get_field_index(part) >= 0:
            kind = kind.field(part).type
        elif kinds.is_list(kind) and part.isdecimal():
            kind = kind.value_type
        else:
            return False
    return True
