"""The public benchmarks that `asyncrl eval` knows by name: where their rows are, how they are usually asked.

benchmarks.yaml lists them. Layouts and commits were taken from the repositories' cards and from public code
that pins them; `columns` also read the copies that evaluation scripts ship
(github.com/hkust-nlp/simpleRL-reason, github.com/openai). Owns no templates: a recipe's prompt comes before
the instruction suggested here.
"""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asyncrl.data.columns import READY, column
from asyncrl.errors import InputError, did_you_mean
from asyncrl.recipe import HeldOutSet, Source
from asyncrl.recipe.file import absolute
from asyncrl.recipe.sources import is_data_file
from asyncrl.recipe.yaml_text import read_yaml
from asyncrl.system.paths import nearest_path
from verifiers.extract import last_box

Row = Mapping[str, Any]
HERE = "asyncrl.data.benchmarks"

BOXED = "{{ question }}\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Prompt of Qwen2.5-Math and what is compared with it (github.com/QwenLM/Qwen2.5-Math, evaluation)."""
BOXED_LETTER = BOXED.replace("your final answer", "the letter of your final answer")
PLAIN = "{{ question }}"
SHUFFLE_SEED = 0
"""Seed of the order of GPQA's options."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Rows and how they are asked, sampled and graded."""

    name: str
    source: Source
    num_rows: int
    """Rows as published."""
    verifier: str | None
    """None: the one that the row names, or the recipe's default."""
    num_samples: int
    """k. 1: the most likely answer alone, at temperature 0."""
    temperature: float
    """Temperature of k > 1 samples."""
    max_new_tokens: int
    instruction: str
    """Jinja around the question, where the recipe has no prompt of its own."""
    instruction_name: str
    is_asked_as_rows: bool = False
    """Without a prompt in the recipe the rows' own prompts are asked, as in data.heldout."""
    is_completion: bool = False
    """The response continues the prompt, both together are graded, and no template stands around it."""
    settings: HeldOutSet | None = None
    """The set of evaluation.sets that it is, for what else is its own."""
    is_sampled: bool = False
    """A single sample per task is sampled, too."""
    stop: tuple[str, ...] = ()
    """Ends a response, which does not hold it. Empty: evaluation.stop or rollout.stop decides."""

    def sources(self) -> list[Source]:
        """The sources of its rows: one, but for a set that names several."""
        return (self.settings.heldout_sources() if self.settings is not None else []) or [self.source]


def minerva_math(row: Row) -> dict[str, Any]:
    """question and answer on the hub; problem and a solution with the answer in its last box in copies."""
    if "answer" in row:
        return {
            "prompt": row["question"] if "question" in row else column(row, "problem"),
            "answer": row["answer"],
        }
    return boxed_solution(row)


def boxed_solution(row: Row) -> dict[str, Any]:
    """AIME 2024's solution on the hub is nothing but a box, with an answer column in copies."""
    if "answer" in row:
        return {"prompt": column(row, "problem"), "answer": row["answer"]}
    answer = last_box(str(column(row, "solution")))
    if answer is None:
        raise ValueError('"solution" has no \\boxed{} that holds an answer')
    return {"prompt": column(row, "problem"), "answer": answer}


def amc23(row: Row) -> dict[str, Any]:
    """question and answer, "27.0" or 27.0 for whole numbers."""
    answer = column(row, "answer")
    return {"prompt": column(row, "question"), "answer": str(answer).removesuffix(".0")}


def olympiadbench(row: Row) -> dict[str, Any]:
    """final_answer is a list, or the text of one; several answers together are the answer."""
    found = column(row, "final_answer")
    answers = ast.literal_eval(found) if isinstance(found, str) and found.startswith("[") else found
    answers = [answers] if isinstance(answers, str) else list(answers or ())
    if not answers:
        raise ValueError('"final_answer" is empty')
    context = row.get("context")
    question = column(row, "question")
    # Not text where a table has no value.
    has_context = isinstance(context, str) and context
    return {"prompt": f"{context}\n{question}" if has_context else question, "answer": ", ".join(answers)}


def humaneval_completion(row: Row) -> dict[str, Any]:
    """The signature with its docstring, for a model to continue; graded as `_humaneval` of columns.py."""
    return {**READY["humaneval"](row), "prompt": column(row, "prompt")}


def gpqa(row: Row) -> dict[str, Any]:
    """Question, Correct Answer and three times Incorrect Answer, as in gpqa_diamond.csv (Rein et al. 2023,
    arXiv 2311.12022). A fixed seed and the question draw the order of the options, which is the same for each
    reader, whatever order the rows have."""
    names = ("Question", "Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)))
    question, *texts = (_stripped(row, name) for name in names)
    drawn = (hashlib.sha256(f"{SHUFFLE_SEED}\n{i}\n{question}".encode()).digest() for i in range(len(texts)))
    order = [i for _, i in sorted((digest, i) for i, digest in enumerate(drawn))]
    options = {letter: texts[i] for letter, i in zip("ABCD", order, strict=True)}
    listed = "\n".join(f"{letter}) {text}" for letter, text in options.items())
    answer = {"letter": "ABCD"[order.index(0)], "options": options}
    return {"prompt": f"{question}\n\n{listed}", "answer": answer}


def _stripped(row: Row, name: str) -> str:
    text = column(row, name)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f'"{name}" is {text!r}, expected text')
    return text.strip()


_KINDS: dict[str, dict[str, Any]] = {
    "math": {
        "verifier": "math",
        "num_samples": 1,
        "temperature": 1.0,
        "max_new_tokens": 2048,
        "instruction": BOXED,
        "instruction_name": "boxed",
    },
    "code": {
        "verifier": "code",
        "num_samples": 1,
        "temperature": 0.8,
        "max_new_tokens": 768,
        "instruction": PLAIN,
        "instruction_name": "plain",
    },
}
"""Kind of a benchmark -> how those of the kind are usually asked."""


def _read_catalog() -> Iterator[tuple[str, Benchmark]]:
    listed = read_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    for name, stated in listed.items():
        source = {"split": "test", **stated.pop("source")}
        if source["columns"] not in READY:
            source["columns"] = f"{HERE}:{source['columns']}"
        usual, stop = _KINDS[stated.pop("kind")], tuple(stated.pop("stop", ()))
        yield name, Benchmark(name, Source(**source), stop=stop, **usual | stated)


CATALOG = dict(_read_catalog())
"""Benchmarks by name."""
GATED = {
    "gpqa": Benchmark(
        "gpqa",
        Source(path="Idavidrein/gpqa", config="gpqa_diamond", split="train", columns=f"{HERE}:gpqa"),
        198,
        verifier="choice",
        num_samples=1,
        temperature=1.0,
        max_new_tokens=4096,
        instruction=BOXED_LETTER,
        instruction_name="boxed letter",
    )
}
"""Benchmarks whose terms forbid to fetch them for others: read from a copy of one's own."""


def find_benchmark(given: str, *, num_samples: int, temperature: float, max_new_tokens: int) -> Benchmark:
    """The benchmark that `given` names: a known one, a file or folder of rows in asyncrl's columns, or
    "name:copy", a known one whose rows are in the file or folder `copy`.

    `num_samples`, `temperature` and `max_new_tokens` are those of files. Raises InputError.
    """
    name, colon, copy = given.partition(":")
    if name in CATALOG and not colon:
        return CATALOG[name]
    if name in GATED and not colon and not Path(name).exists():
        hub_id = GATED[name].source.path
        raise InputError(
            f"The benchmark {name} is gated. Accept its terms at https://huggingface.co/datasets/{hub_id}, "
            f"download {GATED[name].source.config}.csv, and name {name}:FILE, a CSV, JSONL or JSON file."
        )
    known = CATALOG.get(name) or GATED.get(name)
    if known is not None and colon:
        place = absolute(copy, Path.cwd())
        _check_exists(given, place)
        # A folder may have splits, a file has none; neither has revisions.
        split = known.source.split if Path(place).is_dir() else None
        source = known.source.model_copy(
            update={"path": place, "revision": None, "config": None, "split": split}
        )
        return replace(known, source=source)
    place = absolute(given, Path.cwd())
    if not is_data_file(given) and not Path(place).exists():
        raise InputError(
            f"{given} is neither a benchmark nor a file of rows. Known: {', '.join((*CATALOG, *GATED))}."
            f"{did_you_mean(given, (*CATALOG, *GATED))} `asyncrl eval --list` describes them."
        )
    _check_exists(given, place)
    return Benchmark(
        Path(place).name,
        Source(path=place, split="test" if Path(place).is_dir() else None),
        num_rows=0,
        verifier=None,
        num_samples=num_samples,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        instruction=PLAIN,
        instruction_name="rows",
        is_asked_as_rows=True,
    )


def _check_exists(given: str, place: str) -> None:
    if not Path(place).exists():
        raise InputError(f"The benchmark {given} needs {place}, which does not exist.{nearest_path(place)}")
