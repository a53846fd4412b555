"""The section `data`."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, model_validator

from asyncrl.recipe.section import PositiveFloat, Section


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


class Source(Section):
    """A file, a folder or a dataset of a hub, and how its rows are read."""

    path: str
    """A .jsonl, .json or .parquet file, a folder of them, or a hub id such as openai/gsm8k."""
    config: str | None = None
    """Configuration of a folder or hub id that has several."""
    split: str | None = None
    """Split of a folder or hub id. Default: train in data.train, test in data.heldout."""
    revision: str | None = None
    """Branch, tag or commit of a hub id. Default: its main branch."""
    columns: Annotated[
        Annotated[str, Tag("<name>")] | Annotated[ColumnMapping, Tag("<mapping>")],
        Discriminator(_kind_of("<name>", "<mapping>")),
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
    humaneval: the function to complete, graded by verifier code."""
    weight: PositiveFloat | None = None
    """Share of the tasks, relative to the other sources. All sources of a key have one, or none has.
    Default: in data.train every row once per epoch, whichever source it is from; in data.heldout equal shares
    of evaluation.num_tasks."""


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


class Data(Section):
    """Tasks, one per row. A row that repeats an earlier one (prompt, answer and verifier) is left out."""

    train: Sources
    """A path, a source, or a list of both: a mixture. A path is a source with columns asyncrl, which are
    {"prompt": text or chat messages, "answer": ..., "verifier": optional}."""
    heldout: Sources | None = None
    """The same for evaluation, never trained on. Of several sources, evaluation.num_tasks takes as many tasks
    of one as of another, or as their weights say, the first ones of each."""
    is_shuffled: bool = True
    """A new seeded permutation each epoch; false: the order of the file."""
    broken_rows: Literal["refuse", "leave_out"] = "refuse"
    """Rows without an answer that their verifier can parse. `asyncrl verify-data` lists them.
    refuse: the first one ends the start.
    leave_out: they are counted and shown, and the others are used."""
    long_prompts: Literal["refuse", "leave_out"] = "refuse"
    """Prompts that leave no room for a response in model.context_tokens.
    refuse: the first one ends the start.
    leave_out: they are counted and shown, and the others are used."""

    def train_sources(self) -> list[Source]:
        return _sources(self.train)

    def heldout_sources(self) -> list[Source]:
        return [] if self.heldout is None else _sources(self.heldout)

    @model_validator(mode="after")
    def _check(self) -> "Data":
        train, heldout = self.train_sources(), self.heldout_sources()
        if not train or (self.heldout is not None and not heldout):
            raise ValueError(
                "data.train or data.heldout is an empty list. Name a source, or leave out data.heldout."
            )
        _check_weights("data.train", train)
        _check_weights("data.heldout", heldout)
        return self


def _check_weights(key: str, sources: list[Source]) -> None:
    weighted = [source for source in sources if source.weight is not None]
    if weighted and len(weighted) < len(sources):
        bare = next(source for source in sources if source.weight is None)
        raise ValueError(
            f"{key} gives a weight to {weighted[0].path}, but none to {bare.path}. Give every source a "
            f"weight, or none."
        )


def _sources(given: str | Source | list[str | Source]) -> list[Source]:
    listed = given if isinstance(given, list) else [given]
    return [Source(path=source) if isinstance(source, str) else source for source in listed]
