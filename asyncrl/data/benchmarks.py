"""The public benchmarks that `asyncrl eval` knows by name: where their rows are, how they are usually asked.

Each is pinned to a commit of its repository, so that two evaluations ask the same. Layouts and commits were
taken from the repositories' cards and from public code that pins them; `columns` also read the copies that
evaluation scripts ship (github.com/hkust-nlp/simpleRL-reason, github.com/openai). Owns no templates: a
recipe's prompt comes before the instruction suggested here.
"""

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asyncrl.data.columns import READY, column
from asyncrl.errors import InputError, did_you_mean
from asyncrl.recipe import HeldOutSet, Source
from asyncrl.recipe.file import absolute
from asyncrl.recipe.sources import is_data_file
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
COMPLETION_STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(")
"""Strings that end the completion of a function (Chen et al. 2021, arxiv.org/abs/2107.03374, section 3.1)."""


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


def _on_hub(hub_id: str, commit: str, *, columns: str, config: str | None = None) -> Source:
    return Source(path=hub_id, revision=commit, config=config, split="test", columns=columns)


def _math(
    name: str, source: Source, num_rows: int, *, num_samples: int = 1, max_new_tokens: int = 2048
) -> Benchmark:
    return Benchmark(
        name,
        source,
        num_rows,
        verifier="math",
        num_samples=num_samples,
        temperature=1.0,
        max_new_tokens=max_new_tokens,
        instruction=BOXED,
        instruction_name="boxed",
    )


def _code(
    name: str, source: Source, num_rows: int, *, is_completion: bool = False, stop: tuple[str, ...] = ()
) -> Benchmark:
    return Benchmark(
        name,
        source,
        num_rows,
        verifier="code",
        num_samples=1,
        temperature=0.8,
        max_new_tokens=768,
        instruction=PLAIN,
        instruction_name="completion" if is_completion else "plain",
        is_completion=is_completion,
        stop=stop,
    )


_GSM8K = _on_hub("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866", config="main", columns="gsm8k")
_MATH500 = _on_hub("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", columns="math")
# id, problem, solution (a box alone), url.
_AIME24 = _on_hub(
    "math-ai/aime24", "83a7f387baaa524a8bda0022eac0541582297103", columns=f"{HERE}:boxed_solution"
)
# id, problem, answer.
_AIME25 = _on_hub("math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", columns="math")
# id, question, answer, url.
_AMC23 = _on_hub("math-ai/amc23", "80815d37005feb82cd7f8fbc6901d5d3eff43057", columns=f"{HERE}:amc23")
# question, answer.
_MINERVA = _on_hub(
    "math-ai/minervamath", "ee46ddc498933b1977577953250ca5c66be64f96", columns=f"{HERE}:minerva_math"
)
# The English competition mathematics without pictures: question, final_answer, context and more.
_OLYMPIAD = _on_hub(
    "math-ai/olympiadbench", "4faaf1e6ec17d11a4218a9bf4c049ecaf954dd84", columns=f"{HERE}:olympiadbench"
)
# task_id, prompt, canonical_solution, test, entry_point.
_HUMANEVAL = _on_hub(
    "openai/openai_humaneval", "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544", columns="humaneval"
)
# text, code, test_list, test_setup_code and more.
_MBPP = _on_hub(
    "google-research-datasets/mbpp", "4bb6404fdc6cacfda99d4ac4205087b89d32030c", config="full", columns="mbpp"
)
_ALL = (
    _math("gsm8k", _GSM8K, 1319, max_new_tokens=1024),
    _math("math500", _MATH500, 500),
    _math("aime24", _AIME24, 30, num_samples=32, max_new_tokens=8192),
    _math("aime25", _AIME25, 30, num_samples=32, max_new_tokens=8192),
    _math("amc23", _AMC23, 40, num_samples=32, max_new_tokens=4096),
    _math("minerva_math", _MINERVA, 272),
    _math("olympiadbench", _OLYMPIAD, 674, max_new_tokens=4096),
    _code("humaneval", _HUMANEVAL, 164),
    _code(
        "humaneval_completion",
        _HUMANEVAL.model_copy(update={"columns": f"{HERE}:humaneval_completion"}),
        164,
        is_completion=True,
        stop=COMPLETION_STOPS,
    ),
    _code("mbpp", _MBPP, 500),
)
CATALOG = {benchmark.name: benchmark for benchmark in _ALL}
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
