"""The section `evaluation`."""

from typing import Annotated, Any, TypeVar

from pydantic import Field, model_validator

from asyncrl.recipe.sections.section import (
    BENCHMARK,
    OBJECT,
    PATH_OR_HUB_ID,
    Count,
    Fraction,
    MinP,
    Nucleus,
    Positive,
    PositiveFloat,
    Section,
    StopString,
    TokenName,
)
from asyncrl.recipe.sources import HELDOUT_SEED, Source, Sources, check_weights, sources_of

RESERVED_NAMES = ("held-out", "heldout")
"""Names of data.heldout, in results and in `asyncrl eval`."""
CUTS = ("top_p", "top_k", "min_p")
"""Settings of samples that leave some tokens out, and so mean nothing for the most likely answer."""
RepetitionPenalty = Annotated[float, Field(gt=0, le=2, allow_inf_nan=False)]
_Rollout = TypeVar("_Rollout", bound=Section)


class Answering(Section):
    """How answers of an evaluation end and are graded, where other than those of rollouts."""

    max_new_tokens: Positive | None = None
    """Maximum response length. Default: rollout.max_new_tokens; of a set that of evaluation, or of its
    benchmark."""
    stop: Annotated[list[StopString], Field(max_length=8)] | None = None
    """Texts that end a response; [] for none. Default: rollout.stop; of a set that of evaluation."""
    stop_tokens: Annotated[list[TokenName], Field(max_length=8)] | None = None
    """Tokens that end a response besides the model's own; [] for none. Default: rollout.stop_tokens; of
    a set that of evaluation."""
    verifier: Annotated[str | None, OBJECT] = None
    """An independent grader: a verifier that grades in place of those of rows and of verifying.default.
    Default: rows are graded as in training; of a set as in evaluation, or as its benchmark is."""
    verifier_options: Annotated[dict[str, Any], OBJECT] = {}
    """Options of that verifier."""

    def rollout_of(self, rollout: _Rollout) -> _Rollout:
        """`rollout` with what is set here in its place."""
        own = {name: getattr(self, name) for name in ("max_new_tokens", "stop", "stop_tokens")}
        return rollout.model_copy(update={name: value for name, value in own.items() if value is not None})

    def check(self, key: str, context_tokens: int | None) -> None:
        """Raises ValueError where responses leave no room for a prompt; `key` is the section's."""
        limit = self.max_new_tokens
        if limit is not None and context_tokens is not None and limit >= context_tokens:
            raise ValueError(
                f"{key}.max_new_tokens is {limit} but the context holds {context_tokens} tokens: no room is "
                f"left for a prompt. Lower {key}.max_new_tokens or raise model.context_tokens."
            )
        if self.verifier_options and self.verifier is None:
            raise ValueError(
                f"{key}.verifier_options is set but {key}.verifier is not. Set both, or neither."
            )


class HeldOutSet(Answering):
    """A held-out set with a name, settings and a schedule of its own. It has a benchmark or sources."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    """Its name in results. Default: the benchmark's."""
    benchmark: Annotated[str | None, BENCHMARK] = None
    """One as in evaluation.benchmarks."""
    sources: Annotated[Sources | None, PATH_OR_HUB_ID] = None
    """Its rows, as data.heldout names them."""
    num_tasks: Positive | None = None
    """Maximum number of tasks, the first ones, of several sources by their weights. Default: all."""
    samples_per_task: Positive | None = None
    """k of avg@k and pass@k. 1: only the most likely answer, unless temperature is set. Default: the
    benchmark's; of sources 1."""
    temperature: PositiveFloat | None = None
    """Sampling temperature. Default: the benchmark's; of sources evaluation.temperature."""
    top_p: Nucleus | None = None
    """Its samples come from the likeliest tokens whose probabilities sum to this. 1: all tokens.
    Default: evaluation.top_p."""
    top_k: Count | None = None
    """Its samples come from this many of the likeliest tokens. 0: all. Default: evaluation.top_k."""
    min_p: MinP | None = None
    """Its samples come from tokens with at least this share of the likeliest token's probability. 0: all.
    Default: evaluation.min_p."""
    repetition_penalty: RepetitionPenalty | None = None
    """As evaluation.repetition_penalty, which is the default; for its greedy answers too. 1: off."""
    template: str | None = None
    """Template in place of prompt.template, whose other keys stay. Default: the recipe's, else the
    benchmark's."""
    every_steps: Count = 0
    """Steps between its evaluations during training, each with all of its samples. 0: only before and
    after."""

    def title(self) -> str:
        """Name in messages."""
        return self.name or str(self.benchmark)

    def heldout_sources(self) -> list[Source]:
        return [] if self.sources is None else sources_of(self.sources, seed=HELDOUT_SEED)

    @model_validator(mode="after")
    def _check(self) -> "HeldOutSet":
        if (self.benchmark is None) == (self.sources is None):
            found = "neither" if self.benchmark is None else "both"
            raise ValueError(f"A set of evaluation.sets has {found} of benchmark and sources. Name one.")
        if self.sources is not None and self.name is None:
            raise ValueError("A set of evaluation.sets has sources but no name. Give it a name.")
        if self.sources is not None and not self.heldout_sources():
            raise ValueError(f"The sources of evaluation.sets {self.name} are an empty list. Name a source.")
        if self.name in RESERVED_NAMES:
            raise ValueError(
                f"A set of evaluation.sets is named {self.name}, as data.heldout is. Give it another name."
            )
        check_weights(f"evaluation.sets {self.title()}", self.heldout_sources())
        return self


class Evaluation(Answering):
    """Accuracy on held-out tasks, before, during and after training."""

    every_steps: Count = 10
    """Steps between greedy evaluations during training. 0: only before and after."""
    num_tasks: Positive = 256
    """Maximum number of held-out tasks: the first of data.heldout, of several sources the first of each."""
    samples_per_task: Positive = 4
    """k of avg@k and pass@k, measured before and after training. During training only greedy."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature for avg@k and pass@k."""
    top_p: Nucleus = 1.0
    """Samples for avg@k and pass@k come from the likeliest tokens whose probabilities sum to this, in
    evaluation.benchmarks, sets without their own and `asyncrl eval` too. 1: all tokens."""
    top_k: Positive | None = None
    """Samples come from this many of the likeliest tokens. Default: all."""
    min_p: MinP = 0.0
    """Samples come from tokens with at least this share of the likeliest token's probability. 0: all."""
    repetition_penalty: RepetitionPenalty = 1.0
    """Divides logits above 0 of tokens that the response has already by this, and multiplies those below 0;
    for greedy answers too. Servers look at the response alone, transformers at the prompt as well. 1: off."""
    num_servers: Count = 0
    """Local servers that only evaluate. They hold the evaluated version while training continues on the
    others. 0: the rollout servers evaluate, and an evaluation may span versions."""
    stop_at_accuracy: Fraction | None = None
    """Ends the run when a greedy evaluation during training reaches this accuracy, for good: to continue,
    raise or remove it. Default: off."""
    benchmarks: Annotated[list[str], BENCHMARK] = []
    """Measured before and after training, as `asyncrl eval` does (`asyncrl eval --list`): gsm8k, math500,
    aime24, aime25, amc23, minerva_math, olympiadbench, humaneval, humaneval_completion, mbpp; a file of rows;
    or name:file, a benchmark whose rows are in that file, such as gpqa:gpqa_diamond.csv, which is gated."""
    benchmark_tasks: Positive | None = None
    """Limit on the tasks of each benchmark, which are its first ones. Default: all."""
    sets: list[HeldOutSet] = []
    """Further held-out sets, each with a name, settings and a schedule of its own, measured before and after
    training and at steps of its own schedule."""

    @model_validator(mode="after")
    def _check(self) -> "Evaluation":
        titles = [each.title() for each in self.sets]
        for title in titles:
            if titles.count(title) > 1:
                raise ValueError(
                    f"Two sets of evaluation.sets are named {title}. Give one of them another name."
                )
        return self

    def check_all(self, context_tokens: int | None) -> None:
        """Raises ValueError where responses leave no room for a prompt, here or in a set."""
        self.check("evaluation", context_tokens)
        for each in self.sets:
            each.check(f"evaluation.sets.{each.title()}", context_tokens)

    def sampling_of(self, own: HeldOutSet | None) -> dict[str, Any]:
        """top_p, top_k, min_p and repetition_penalty: those of the set, else of all evaluations."""
        names = (*CUTS, "repetition_penalty")
        found = {name: getattr(self, name) for name in names}
        if own is not None:
            stated = {name: getattr(own, name) for name in names}
            found |= {name: value for name, value in stated.items() if value is not None}
        return found | {"top_k": found["top_k"] or None}

    def has_grader(self) -> bool:
        """Whether a verifier grades in place of those of rows, here or in a set."""
        return any(each.verifier is not None for each in (self, *self.sets))
