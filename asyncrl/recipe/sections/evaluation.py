"""The section `evaluation`."""

from typing import Annotated

from pydantic import Field

from asyncrl.recipe.markers import BENCHMARK
from asyncrl.recipe.sections.section import (
    Count,
    Fraction,
    MinP,
    Nucleus,
    Positive,
    PositiveFloat,
    Section,
)


class Evaluation(Section):
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
    evaluation.benchmarks and `asyncrl eval` too. 1: all tokens."""
    top_k: Positive | None = None
    """Samples come from this many of the likeliest tokens. Default: all."""
    min_p: MinP = 0.0
    """Samples come from tokens with at least this share of the likeliest token's probability. 0: all."""
    repetition_penalty: Annotated[float, Field(gt=0, le=2, allow_inf_nan=False)] = 1.0
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
    or name:file, a benchmark whose rows are in that file."""
    benchmark_tasks: Positive | None = None
    """Limit on the tasks of each benchmark, which are its first ones. Default: all."""
