"""The sections `data`, `prompt` and `prepare`."""

import itertools
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from asyncrl.recipe.row_filter import RowFilter, parse_filter
from asyncrl.recipe.sections.section import OBJECT, PATH, PATH_OR_HUB_ID, TASK_ROWS, Positive, Section
from asyncrl.recipe.sources import (
    HELDOUT_SEED,
    Source,
    Sources,
    check_shared_tasks,
    check_weights,
    sources_of,
)
from asyncrl.recipe.terms import Group
from asyncrl.system.words import as_written


class Selection(Group):
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
    """With learnable, rollout.pilot_samples and data.mixture, the steps after which a verdict counts half:
    the policy moves."""
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


class MixtureShares(Group):
    """How the sources of data.train that have weights share the groups. A word alone is `rebalance`:
    `data.mixture: signal`. Shares use the visits that were graded before the trainer's present version; the
    journal has them, so a resumed run continues as if it had not been stopped."""

    rebalance: Literal["never", "signal"] = "never"
    """never: by their weights.
    signal: by their weights times the estimated chance that a group of the source has two rewards, from its
    own groups, which count half after data.selection.half_life_steps. For sources of unlike difficulty, some
    of which are learned before others; the share of easy and hopeless ones falls, and rises again once they
    have a signal. The metric groups_share_by_source shows it."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.2
    """With signal, the share of the groups that is divided by the weights all the same: each source keeps at
    least this part of the share that its weight gives it. 1: all of it."""

    @model_validator(mode="after")
    def _check(self) -> "MixtureShares":
        if self.rebalance == "never" and self.floor != MixtureShares.model_fields["floor"].default:
            raise ValueError(
                f"data.mixture.floor is {self.floor:g}, but data.mixture.rebalance is never: shares are "
                f"those of the weights. Set data.mixture.rebalance to signal, or leave floor out."
            )
        return self


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
    mixture: MixtureShares = MixtureShares()

    def row_filter(self) -> RowFilter | None:
        return None if self.filter is None else parse_filter(self.filter)

    def train_sources(self) -> list[Source]:
        return sources_of(self.train, seed=0)

    def heldout_sources(self) -> list[Source]:
        return [] if self.heldout is None else sources_of(self.heldout, seed=HELDOUT_SEED)

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
        check_weights("data.train", train)
        if self.mixture.rebalance != "never" and (len(train) == 1 or train[0].weight is None):
            found = "one source" if len(train) == 1 else "no weights"
            raise ValueError(
                f"data.mixture.rebalance is {self.mixture.rebalance}, but data.train has {found}: there are "
                f"no shares to change. List several sources with weights, or leave data.mixture out."
            )
        check_weights("data.heldout", heldout)
        for trained, asked in itertools.product(train, heldout):
            check_shared_tasks(trained, asked, "data.heldout")
        return self


class PromptExample(Section):
    """A solved task that is shown in front of the question."""

    question: str
    """As a row would ask it."""
    answer: str
    """Text that the model should write, reasoning included."""


class Prompt(Section):
    """Template that every prompt of the data goes through, and the contexts of later turns. `asyncrl prompt`
    shows the result."""

    template: str | None = None
    """A name, or jinja that writes {{ question }} and may use {{ system }} and `examples`. Default: the rows'
    prompts as they are.
    plain: the question, nothing else.
    chat: system, examples as earlier turns and the question, by the model's chat template.
    few_shot: examples as "Question: ... Answer: ...", then the question.
    r1: a conversation in text, "<think>" prefilled, the answer in <answer> (DeepSeek-R1).
    r1_boxed: the same with the answer in a box inside <answer> (Open-Reasoner-Zero).
    qwen_boxed: ChatML, "reason step by step" behind the question (SimpleRL-Zoo).
    qwen_math: ChatML, "reason step by step" as the system prompt (Dr. GRPO).
    answer_line: DAPO's instructions, the answer on a line "Answer: ...".
    """
    system: str | None = None
    """System prompt, for chat, qwen_boxed and jinja that uses it. Default: none."""
    suffix: str | None = None
    """Text behind the question, with any template, such as "\\n\\nThink step by step." (in double quotes).
    Default: none."""
    examples: list[PromptExample] = []
    """Solved tasks {question, answer}, for few_shot, chat and jinja that uses them."""
    chat_template_kwargs: dict[str, Any] = {}
    """Variables that the model's chat template reads, such as {enable_thinking: false} (Qwen3), in training,
    evaluation, chat and later turns alike. One that the template does not read is refused."""
    history: Literal["as_sampled", "as_rendered"] = "as_sampled"
    """The context of later turns, where environments or tools answer.
    as_sampled: what the model wrote stays as it wrote it, and answers follow.
    as_rendered: what the chat template makes of the conversation so far, as at inference. Where it writes
    earlier turns otherwise (Qwen3: without their thinking), the turn starts a branch of its trajectory."""

    @model_validator(mode="after")
    def _check(self) -> "Prompt":
        unused = [key for key in ("system", "suffix", "examples") if getattr(self, key)]
        if unused and self.template is None:
            raise ValueError(
                f"prompt.{unused[0]} is set but prompt.template is not, which writes it. Set "
                f"prompt.template, such as chat, or remove prompt.{unused[0]}."
            )
        return self

    def writes_text(self) -> bool:
        """Whether prompts become text, whatever rows have."""
        return self.template not in (None, "chat")


class Prepare(Section):
    """Makes data and a base model before the first run; skipped if they exist already."""

    target: Annotated[str, OBJECT]
    """Function "package.module:name" or "./file.py:name", called as function(folder, progress, **options)."""
    folder: Annotated[str, PATH]
    """Output folder, to which `model.path` and `data` usually point."""
    options: dict[str, Any] = {}
    """Keyword arguments of the function. Changing one makes everything again."""
