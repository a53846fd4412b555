"""Which columns of published rows are prompt, answer and verifier: ready mappings by name, or one's own.

A mapping names columns, with dots for what is inside of them ("reward_model.ground_truth"). What no mapping
can say is a function of one's own, "package.module:name" or "./file.py:name": row -> row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.errors import InputError
from verifiers.extract import last_box

Row = Mapping[str, Any]
ToRow = Callable[[Row], dict[str, Any]]
"""A published row -> {"prompt": ..., "answer": ..., "verifier": optional}. Raises KeyError for a column that
is missing and ValueError for one that holds no answer."""


@dataclass(frozen=True, slots=True)
class Columns:
    """`prompt` and `answer` are columns; the answer is what follows the last `answer_after` in it."""

    prompt: str
    answer: str
    answer_after: str | None = None
    is_answer_boxed: bool = False
    """The answer is in the last \\boxed{} of the column."""
    verifier: str | None = None
    """Of all rows: a verifier's name. None: the recipe's default, or the column "verifier"."""

    def __call__(self, row: Row) -> dict[str, Any]:
        prompt, answer = column(row, self.prompt), column(row, self.answer)
        if self.answer_after is not None:
            if not isinstance(answer, str) or self.answer_after not in answer:
                raise ValueError(f'"{self.answer}" has no {self.answer_after!r} in front of an answer')
            answer = answer.rpartition(self.answer_after)[2].strip()
        elif self.is_answer_boxed:
            answer = last_box(str(answer))
            if answer is None:
                raise ValueError(f'"{self.answer}" has no \\boxed{{}} that holds an answer')
        made = {"prompt": prompt, "answer": answer}
        verifier = self.verifier or row.get("verifier")
        return made if verifier is None else {**made, "verifier": verifier}


def column(row: Row, name: str) -> Any:
    """The value at "outer.inner", or at "list.0". Raises KeyError with `name` where it is not there."""
    value: Any = row
    for part in name.split("."):
        try:
            value = value[int(part) if isinstance(value, Sequence) and not isinstance(value, str) else part]
        except (KeyError, IndexError, TypeError, ValueError):
            raise KeyError(name) from None
    return value


def _svamp(row: Row) -> dict[str, Any]:
    question = f"{str(column(row, 'Body')).rstrip(' .')}. {column(row, 'Question')}"
    return {"prompt": question, "answer": column(row, "Answer")}


def _mbpp(row: Row) -> dict[str, Any]:
    """The statement and, as the paper gives them to the model, the tests (Austin et al. 2021)."""
    tests = list(column(row, "test_list"))
    text = row["text"] if "text" in row else column(row, "prompt")
    setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or ())
    answer: dict[str, Any] = {"tests": tests, "solution": column(row, "code")}
    return {
        "prompt": f"{text}\nYour code should pass these tests:\n\n" + "\n".join(tests),
        "answer": {**answer, "setup": setup} if setup else answer,
        "verifier": "code",
    }


def _humaneval(row: Row) -> dict[str, Any]:
    """The signature with its docstring, to be completed; the tests call `check(entry_point)`."""
    start, entry = column(row, "prompt"), column(row, "entry_point")
    return {
        "prompt": f"Complete this function. Answer with the whole function.\n\n```python\n{start}```",
        "answer": {
            "tests": [{"assert": f"{column(row, 'test')}\ncheck({entry})"}],
            "solution": f"{start}{column(row, 'canonical_solution')}",
        },
        "verifier": "code",
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
}
"""By the name that a recipe's `columns` may have. DAPO-Math-17k and what verl prepares have those of verl."""


def to_row(make: ToRow, row: Row, where: str) -> dict[str, Any]:
    """What `make` makes of a row. Raises InputError with the columns that are there."""
    try:
        return make(row)
    except KeyError as error:
        raise InputError(
            f"{where}: no column {error}; the row has {', '.join(map(str, row))}. Name its columns in "
            f"`columns`; ready ones: {', '.join(READY)}."
        ) from None
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"{where}: {error}") from error
