"""The section `data`."""

import itertools
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from asyncrl.recipe.markers import GYM_ROWS, OBJECT, PATH_OR_HUB_ID, TASK_ROWS
from asyncrl.recipe.row_filter import RowFilter, parse_filter
from asyncrl.recipe.sections.section import Positive, PositiveFloat, Section, Seed
from asyncrl.system.kinds import as_written


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

    prompt: str
    """Column of the question: text or chat messages."""
    answer: str
    """Column of the answer."""
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
    """A .jsonl, .json or .parquet file, a folder of them, or a hub id such as openai/gsm8k."""
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
    asyncrl: prompt, answer and verifier.
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


class Selection(Section):
    """Which row of data.train each group asks. A word alone is `by`: `data.selection: learnable`. Choices use
    the visits that were graded before the trainer's present version; the journal has them, so a resumed run
    continues as if it had not been stopped. Sources with weights keep their shares."""

    by: Literal["uniform", "learnable", "curriculum", "retire"] = "uniform"
    """uniform: every row once per epoch, in the order of data.is_shuffled.
    learnable: drawn by the estimated chance that the group has two rewards, 1 - s^N - (1 - s)^N. For data of
    which many rows are always or never solved; costs nothing.
    curriculum: rows in stages by data.selection.column; a stage is added when the one before is learned. For
    tasks of graded size that are hopeless at first.
    retire: rows solved in their last visits rest. For data that is passed over many times."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.1
    """With learnable, the share of the groups that ask the rows in turn instead, so that each is asked from
    time to time."""
    half_life_steps: Positive = 20
    """With learnable and rollout.pilot_samples, the steps after which a verdict counts half: the policy
    moves."""
    column: Annotated[str | None, TASK_ROWS] = None
    """With curriculum, the column of numbers that says how hard a row is, such as a length, or pass_rate as
    `asyncrl difficulty` writes it. A dot reaches inside."""
    easy: Literal["low", "high"] = "low"
    """With curriculum, which end of the column is easy; high for pass_rate."""
    stages: Annotated[int, Field(ge=2)] = 5
    """With curriculum, how many stages there are, of equal shares of the rows; fewer where the column has
    fewer values."""
    advance_at: Annotated[float, Field(gt=0, le=1)] = 0.7
    """With curriculum, the mean correctness of the newest stage at which the next is added."""
    advance_visits: Positive = 32
    """With curriculum, the last graded groups of the newest stage, over which that mean is taken."""
    solved_visits: Positive = 2
    """With retire, the visits in a row with every trajectory right after which a row rests."""
    rest_steps: Positive = 50
    """With retire, the steps that a row rests; it is asked once then, and rests again if still solved."""

    def describe(self) -> str:
        """In a few words."""
        return {
            "uniform": "nothing: each once per epoch",
            "learnable": f"their chance of a signal, {self.floor:g} of the groups in turn",
            "curriculum": f"{self.column}, {self.easy} first, in {self.stages} stages; the next at a pass "
            f"rate of {self.advance_at:g} over {self.advance_visits} groups",
            "retire": f"need: {self.rest_steps} steps of rest after {self.solved_visits} visits all right",
        }[self.by]

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        return {"by": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> "Selection":
        if (self.column is None) == (self.by == "curriculum"):
            found = "is missing" if self.column is None else f'is "{self.column}"'
            raise ValueError(
                f"data.selection.column {found}, but data.selection.by is {self.by}: curriculum, and it "
                f"alone, orders rows by a column. Change one of the two."
            )
        for key, owner in _SELECTION_KEYS.items():
            default = Selection.model_fields[key].default
            if owner != self.by and getattr(self, key) != default:
                raise ValueError(
                    f"data.selection.{key} is {as_written(getattr(self, key))}, but data.selection.by is "
                    f"{self.by}: only {owner} reads it. Leave it out."
                )
        return self


_SELECTION_KEYS = {
    **dict.fromkeys(("floor",), "learnable"),
    **dict.fromkeys(("easy", "stages", "advance_at", "advance_visits"), "curriculum"),
    **dict.fromkeys(("solved_visits", "rest_steps"), "retire"),
}
"""Key -> the selection that reads it."""


def _well_formed(value: str) -> str:
    parse_filter(value)
    return value


class Data(Section):
    """Tasks, one per row. A row that repeats an earlier one (prompt, answer, verifier, and columns that it
    keeps) is left out."""

    train: Annotated[Sources, PATH_OR_HUB_ID]
    """A path, a source, or a list of both: a mixture. A path is a source with columns asyncrl, which are
    {"prompt": text or chat messages, "answer": ..., "verifier": optional, "environment": optional}. With
    turns.*, and for a verifier that takes the task, a row keeps its other columns too."""
    heldout: Annotated[Sources | None, PATH_OR_HUB_ID] = None
    """The same for evaluation, never trained on. With several sources, evaluation.num_tasks is divided
    equally or by their weights, and takes the first rows of each."""
    is_shuffled: bool = True
    """A new seeded permutation each epoch; false: the order of the file."""
    broken_rows: Annotated[Literal["refuse", "leave_out"], TASK_ROWS] = "refuse"
    """Rows without an answer that their verifier can parse. `asyncrl verify-data` lists them.
    refuse: the first one ends the start.
    leave_out: they are counted and shown, and the others are used."""
    max_prompt_tokens: Annotated[Positive | None, TASK_ROWS] = None
    """Longest prompt, template included. Default: what model.context_tokens leaves room for."""
    long_prompts: Annotated[Literal["refuse", "leave_out"], TASK_ROWS] = "refuse"
    """Prompts that leave no room for a response in model.context_tokens, or exceed max_prompt_tokens.
    refuse: the first one ends the start.
    leave_out: they are counted and shown, and the others are used."""

    filter: Annotated[Annotated[str, AfterValidator(_well_formed)] | None, TASK_ROWS] = None
    """Which rows of data.train are used, by their columns, such as "pass_rate in [0.05, 0.95]": a number in a
    range, both ends included; level < 4, also <=, >, >=, == and !=; source in {"web", "book"}; several joined
    by `and`. A dot reaches inside a column. Others are counted and shown; a row where the column is null is
    one of them, and a row without the column ends the start. `asyncrl difficulty` writes the column
    pass_rate. Default: all rows."""

    selection: Selection = Selection()

    def row_filter(self) -> RowFilter | None:
        return None if self.filter is None else parse_filter(self.filter)

    def train_sources(self) -> list[Source]:
        return _sources(self.train, seed=0)

    def heldout_sources(self) -> list[Source]:
        return [] if self.heldout is None else _sources(self.heldout, seed=HELDOUT_SEED)

    @model_validator(mode="after")
    def _check(self) -> "Data":
        train, heldout = self.train_sources(), self.heldout_sources()
        if not train or (self.heldout is not None and not heldout):
            raise ValueError(
                "data.train or data.heldout is an empty list. Name a source, or leave out data.heldout."
            )
        if self.selection.by != "uniform" and not self.is_shuffled:
            raise ValueError(
                f"data.is_shuffled is false, but data.selection is {self.selection.by}, which does not "
                f"follow the order of the file. Remove one of the two."
            )
        _check_weights("data.train", train)
        _check_weights("data.heldout", heldout)
        for trained, asked in itertools.product(train, heldout):
            _check_shared_tasks(trained, asked)
        return self


def _check_weights(key: str, sources: list[Source]) -> None:
    weighted = [source for source in sources if source.weight is not None]
    if weighted and len(weighted) < len(sources):
        bare = next(source for source in sources if source.weight is None)
        raise ValueError(
            f"{key} gives a weight to {weighted[0].title()}, but none to {bare.title()}. Give every source a "
            f"weight, or none."
        )


def _sources(given: str | Source | list[str | Source], *, seed: int) -> list[Source]:
    """As sources; of a gym with its size, its seed (default `seed`) and its configuration."""
    listed = given if isinstance(given, list) else [given]
    sources = [Source(path=source) if isinstance(source, str) else source for source in listed]
    return [source if source.gym is None else _written_out(source, seed) for source in sources]


def _written_out(source: Source, seed: int) -> Source:
    defaults = {"size": 500, "seed": seed, "config": {}}
    return source.model_copy(
        update={key: value for key, value in defaults.items() if getattr(source, key) is None}
    )


def _check_shared_tasks(trained: Source, asked: Source) -> None:
    """Two seeds of a gym make the same tasks, moved by their difference."""
    if asked.gym is None or (trained.gym, trained.config) != (asked.gym, asked.config):
        return
    assert trained.seed is not None and trained.size and asked.seed is not None and asked.size
    end = trained.seed + trained.size
    if asked.seed < end and trained.seed < asked.seed + asked.size:
        raise ValueError(
            f"data.heldout asks {asked.title()} for the seeds {asked.seed} to {asked.seed + asked.size - 1}, "
            f"but data.train has {trained.seed} to {end - 1} (task i is made from seed + i): held-out tasks "
            f"would be trained on. Set the seed of data.heldout to {end} or more."
        )
