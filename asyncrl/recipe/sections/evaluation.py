"""The section `evaluation`."""

from typing import Annotated, Any

from pydantic import Field

from asyncrl.recipe.markers import BENCHMARK, OBJECT
from asyncrl.recipe.sections.rollout import Rollout, StopString, TokenName
from asyncrl.recipe.sections.section import Count, Fraction, Positive, PositiveFloat, Section


class Answering(Section):
    """How answers of an evaluation end and are graded, where other than those of rollouts."""

    max_new_tokens: Positive | None = None
    """Maximum response length. Default: rollout.max_new_tokens."""
    stop: Annotated[list[StopString], Field(max_length=8)] | None = None
    """Texts that end a response; [] for none. Default: rollout.stop."""
    stop_tokens: Annotated[list[TokenName], Field(max_length=8)] | None = None
    """Tokens that end a response besides the model's own; [] for none. Default: rollout.stop_tokens."""
    verifier: Annotated[str | None, OBJECT] = None
    """An independent grader: a verifier that grades in place of those of rows and of verifying.default.
    Default: rows are graded as in training."""
    verifier_options: Annotated[dict[str, Any], OBJECT] = {}
    """Options of that verifier."""

    def rollout_of(self, rollout: Rollout) -> Rollout:
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
    num_servers: Count = 0
    """Local servers that only evaluate. They hold the evaluated version while training continues on the
    others. 0: the rollout servers evaluate, and an evaluation may span versions."""
    stop_at_accuracy: Fraction | None = None
    """Ends the run when a greedy evaluation during training reaches this accuracy, for good: to continue,
    raise or remove it. Default: off."""
    benchmarks: Annotated[list[str], BENCHMARK] = []
    """Measured before and after training, as `asyncrl eval` does (`asyncrl eval --list`): gsm8k, math500,
    aime24, aime25, amc23, minerva_math, olympiadbench, humaneval, humaneval_completion, mbpp; a file of rows;
    or name:file, a benchmark whose rows are in that file."""
    benchmark_tasks: Positive | None = None
    """Limit on the tasks of each benchmark, which are its first ones. Default: all."""
