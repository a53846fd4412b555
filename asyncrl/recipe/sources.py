"""Sources of rows, as the sections of a recipe name them; endings of files with rows: those that are read,
and how to convert others that hold tables.
"""

import shlex
from collections.abc import Callable
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Discriminator, Tag, field_validator, model_validator

from asyncrl.recipe.sections.section import (
    GYM_ROWS,
    OBJECT,
    PATH_OR_HUB_ID,
    Positive,
    PositiveFloat,
    Section,
    Seed,
)
from asyncrl.system.words import as_written


def _kind_of(text: str, mapping: str, several: str | None = None) -> Callable[[Any], str]:
    """The tag of a value: one that is neither a mapping nor a list is checked as text."""

    def kind(value: Any) -> str:
        match value:
            case list() | tuple() if several is not None:
                return several
            case dict() | Section():
                return mapping
            case _:
                return text

    return kind


class ColumnMapping(Section):
    """Which columns of a row hold what. A dot reaches inside: "reward_model.ground_truth", "answers.0"."""

    prompt: str | None = None
    """Column of the question: text or chat messages."""
    answer: str | None = None
    """Column of the answer, by which verifiers grade."""
    response: str | None = None
    """With stage sft, the column of the response that is learned."""
    messages: str | None = None
    """With stage sft, in place of prompt and response, the column of a whole conversation."""
    chosen: str | None = None
    """With stage dpo, the column of the preferred response: text, or a whole conversation."""
    rejected: str | None = None
    """With stage dpo, the column of the other response, likewise."""
    answer_after: str | None = None
    """The answer is what follows the last such mark in its column, such as "####". Default: all of it."""
    is_answer_boxed: bool = False
    """The answer is in the last \\boxed{} of its column."""
    verifier: str | None = None
    """Verifier of all these rows. Default: the one in the column "verifier", or verifying.default."""

    @model_validator(mode="after")
    def _check(self) -> "ColumnMapping":
        if self.answer_after is not None and self.is_answer_boxed:
            raise ValueError(
                "columns has answer_after and is_answer_boxed. Keep the one that says where the answer is."
            )
        return self


HELDOUT_SEED = 1_000_000
"""Seed of a gym in data.heldout that names none: beyond the tasks of most training sources."""


class Source(Section):
    """A file, a folder, a dataset of a hub or a gym, and how its rows are read. It has a path or a gym."""

    path: Annotated[str | None, PATH_OR_HUB_ID] = None
    """A .jsonl, .json, .csv, .tsv or .parquet file, a folder of them, or a hub id such as openai/gsm8k.
    Values of CSV are texts."""
    folder: str | None = None
    """Folder inside a folder or hub id that keeps each dataset in its own. Default: all of it."""
    gym: Annotated[str | None, GYM_ROWS] = None
    """A dataset of reasoning-gym, such as countdown: tasks made by the package, graded by verifier gym.
    Needs `make setup GYM=1`. Several: list a source for each, with weights."""
    config: Annotated[
        Annotated[
            Annotated[str, Tag("<name>")] | Annotated[dict[str, Any], Tag("<mapping>")],
            Discriminator(_kind_of("<name>", "<mapping>")),
        ]
        | None,
        GYM_ROWS,
    ] = None
    """Name of a configuration, where a folder or hub id has several; or a mapping, the configuration of a
    gym, such as {min_numbers: 3}."""
    seed: Annotated[Seed | None, GYM_ROWS] = None
    """Seed of a gym: task i is made from seed + i. Default: 0 in data.train, 1000000 in data.heldout."""
    size: Annotated[Positive | None, GYM_ROWS] = None
    """How many tasks of a gym are made. Default: 500."""
    options: dict[str, Any] | None = None
    """Options of verifier gym for the tasks of a gym. Default: verifying.options if verifying.default is
    gym, else none."""
    split: str | None = None
    """Split of a folder or hub id. Default: train in data.train, test in data.heldout."""
    revision: str | None = None
    """Branch, tag or commit of a hub id. Default: its main branch."""
    columns: Annotated[
        Annotated[str, Tag("<name>")] | Annotated[ColumnMapping, Tag("<mapping>")],
        Discriminator(_kind_of("<name>", "<mapping>")),
        OBJECT,
    ] = "asyncrl"
    """Which columns are prompt, answer and verifier: a ready name, a mapping, or a function row -> row as
    "package.module:name" or "./file.py:name".
    asyncrl: prompt, answer and verifier; with stage sft messages, or prompt and response; with stage dpo
    prompt, chosen and rejected.
    verl: prompt and reward_model.ground_truth, as verl prepares data; also DAPO-Math-17k.
    gsm8k: question, and what follows #### in answer.
    math: problem and answer.
    math_solution: problem, and the last box in solution.
    question_answer: question and answer.
    question_final_answer: question and the first of final_answer, as OlympiadBench.
    svamp: Body with Question, and Answer.
    mbpp: text or prompt with its tests, graded by verifier code.
    humaneval: the function to complete, graded by verifier code.
    countdown: target and nums, asked as TinyZero does, graded by verifier countdown."""
    weight: PositiveFloat | None = None
    """Share of the tasks, relative to the other sources. All sources of a key have one, or none has.
    Default: in data.train every row once per epoch, whichever source it is from; in data.heldout equal shares
    of evaluation.num_tasks."""

    def title(self) -> str:
        """Name in messages."""
        return f"gym {self.gym}" if self.path is None else self.path

    @field_validator("gym", mode="before")
    @classmethod
    def _check_gym(cls, value: Any) -> Any:
        if isinstance(value, dict):
            raise ValueError(
                f"gym is a mapping of {', '.join(map(str, value))}, expected the name of one dataset. List a "
                f"source for each: [{{gym: countdown, weight: 2}}, {{gym: chain_sum, weight: 1}}]."
            )
        return value

    @model_validator(mode="after")
    def _check(self) -> "Source":
        if (self.path is None) == (self.gym is None):
            found = "neither path nor gym" if self.path is None else "both path and gym"
            raise ValueError(f"A source has {found}. Name a path, a hub id or a gym.")
        of_others = ("size", "seed", "options") if self.gym is None else ("folder", "split", "revision")
        for key in of_others:
            if (value := getattr(self, key)) is not None:
                whose = "only a gym has one" if self.gym is None else "a gym has none"
                raise ValueError(
                    f"{self.title()} has the {key} {as_written(value)}, but {whose}. Leave it out."
                )
        if self.gym is not None and self.columns != "asyncrl":
            raise ValueError(
                f"{self.title()} has columns, but the rows of a gym need no mapping. Leave columns out."
            )
        if self.config is not None and isinstance(self.config, dict) == (self.gym is None):
            expected = "the name of one" if self.gym is None else "a mapping"
            raise ValueError(f"{self.title()} has the config {as_written(self.config)}, expected {expected}.")
        return self


AnySource = Annotated[
    Annotated[str, Tag("<path>")] | Annotated[Source, Tag("<source>")],
    Discriminator(_kind_of("<path>", "<source>")),
]
Sources = Annotated[
    Annotated[str, Tag("<path>")]
    | Annotated[Source, Tag("<source>")]
    | Annotated[list[AnySource], Tag("<list>")],
    Discriminator(_kind_of("<path>", "<source>", "<list>")),
]


def check_weights(key: str, sources: list[Source]) -> None:
    weighted = [source for source in sources if source.weight is not None]
    if weighted and len(weighted) < len(sources):
        bare = next(source for source in sources if source.weight is None)
        raise ValueError(
            f"{key} gives a weight to {weighted[0].title()}, but none to {bare.title()}. Give every source a "
            f"weight, or none."
        )


def sources_of(given: str | Source | list[str | Source], *, seed: int) -> list[Source]:
    """As sources; of a gym with its size, its seed (default `seed`) and its configuration."""
    listed = given if isinstance(given, list) else [given]
    sources = [Source(path=source) if isinstance(source, str) else source for source in listed]
    defaults = {"size": 500, "seed": seed, "config": {}}
    return [
        source
        if source.gym is None
        else source.model_copy(
            update={key: value for key, value in defaults.items() if getattr(source, key) is None}
        )
        for source in sources
    ]


def check_shared_tasks(trained: Source, asked: Source, key: str) -> None:
    """Two seeds of a gym make the same tasks, moved by their difference."""
    if asked.gym is None or (trained.gym, trained.config) != (asked.gym, asked.config):
        return
    assert trained.seed is not None and trained.size and asked.seed is not None and asked.size
    end = trained.seed + trained.size
    if asked.seed < end and trained.seed < asked.seed + asked.size:
        raise ValueError(
            f"{key} asks {asked.title()} for the seeds {asked.seed} to {asked.seed + asked.size - 1}, "
            f"but data.train has {trained.seed} to {end - 1} (task i is made from seed + i): held-out tasks "
            f"would be trained on. Set the seed of {key} to {end} or more."
        )


DATA_FILES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""Read as they are."""
EXPECTED = "a .jsonl, .json, .csv, .tsv or .parquet file"
_PANDAS = {
    # As text: a gold of 007 is not 7.
    ".xlsx": "read_excel({path!r}, dtype=str, keep_default_na=False)",
    ".xls": "read_excel({path!r}, dtype=str, keep_default_na=False)",
    ".ods": "read_excel({path!r}, dtype=str, keep_default_na=False)",
    ".feather": "read_feather({path!r})",
    ".orc": "read_orc({path!r})",
    ".pkl": "read_pickle({path!r})",
    ".pickle": "read_pickle({path!r})",
}
_UNPACK = {
    ".gz": "gunzip -k",
    ".zst": "zstd -d",
    ".bz2": "bunzip2 -k",
    ".xz": "unxz -k",
    ".zip": "unzip",
    ".tar": "tar xf",
    ".tgz": "tar xzf",
}
OTHER_FILES = (*_PANDAS, *_UNPACK, ".arrow")
"""Hold rows, too, but have to be converted first."""


def is_data_file(name: str) -> bool:
    """Whether the ending says that the file holds rows, readable or not."""
    return name.endswith((*DATA_FILES, *OTHER_FILES))


def how_to_convert(path: str) -> str:
    """A sentence with the command that makes a readable file of `path`; empty for an unknown ending."""
    ending = PurePath(path).suffix
    made = path.removesuffix(ending)
    if ending in _UNPACK:
        return f" Unpack it with: {_UNPACK[ending]} {shlex.quote(path)}"
    if ending == ".arrow":
        code = f"import datasets; datasets.Dataset.from_file({path!r}).to_parquet({made + '.parquet'!r})"
    elif ending in _PANDAS:
        read = _PANDAS[ending].format(path=path)
        code = (
            f"import pandas; pandas.{read}.to_json({made + '.jsonl'!r}, orient='records', lines=True, "
            f"force_ascii=False)"
        )
    else:
        return ""
    return f" Convert it with: python -c {shlex.quote(code)}"
