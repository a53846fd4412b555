"""Checks of what a stage needs of the other sections."""

from asyncrl.recipe.sections.data import Data
from asyncrl.recipe.sections.evaluation import Evaluation
from asyncrl.recipe.sections.prompt import Prompt
from asyncrl.recipe.sections.serving import Serving
from asyncrl.recipe.sources import ColumnMapping, Source
from asyncrl.system.words import as_written

_OF_TASKS = ("broken_rows", "max_prompt_tokens", "long_prompts", "selection", "mixture")
"""Keys of `data` about tasks, which rows that are learned are not."""


def check_columns(stage: str, data: Data, prompt: Prompt | None, *, has_answers: bool) -> None:
    """Raises ValueError where rows cannot hold what the stage learns from. `has_answers`: verifiers judge
    responses to data.train."""
    for source in data.train_sources():
        _check_source(stage, "data.train", source, has_answers=has_answers)
    for source in data.heldout_sources():
        _check_source(stage, "data.heldout", source, has_answers=True)
    if stage == "rl":
        return
    for name in _OF_TASKS:
        if (value := getattr(data, name)) != Data.model_fields[name].default:
            shown = as_written(value) if isinstance(value, (str, int)) else "set"
            raise ValueError(
                f"data.{name} is {shown} but stage is {stage}, whose rows are no tasks with answers. Remove "
                f"it; {stage}.too_long says what becomes of long rows."
            )
    if prompt is not None and prompt.history != "as_sampled":
        raise ValueError(f"prompt.history is {prompt.history} but stage is {stage}. Remove it.")


def _check_source(stage: str, key: str, source: Source, *, has_answers: bool) -> None:
    given = source.columns
    if stage == "rl":
        if isinstance(given, ColumnMapping):
            needed = ("prompt", "answer") if has_answers else ("prompt",)
            missing = next((name for name in needed if getattr(given, name) is None), None)
            if missing is not None:
                raise ValueError(f"{key}.columns.{missing} is missing: name the column that holds it.")
        return
    if source.gym is not None:
        raise ValueError(
            f"{key} names {source.title()} but stage is {stage}: a gym makes tasks without responses. Name "
            f"rows that have one."
        )
    if stage == "dpo" and isinstance(given, ColumnMapping) and None in (given.chosen, given.rejected):
        raise ValueError(f"{key} has columns without chosen or rejected. With stage dpo name both.")
    if stage == "sft" and isinstance(given, ColumnMapping):
        has_response = given.prompt is not None and given.response is not None
        if (given.messages is not None) == has_response:
            raise ValueError(
                f"{key} has columns without a response to learn, or with two. With stage {stage} name "
                f"messages, or prompt and response."
            )


def check_servers(stage: str, serving: Serving, evaluation: Evaluation) -> None:
    """Raises ValueError where answers are asked for and no server gives them."""
    is_asked = stage == "rl" or bool(evaluation.verifier or evaluation.benchmarks or evaluation.sets)
    if is_asked and not serving.servers and not serving.num_servers:
        why = "stage is rl" if stage == "rl" else "evaluation.verifier, benchmarks or sets ask for answers"
        raise ValueError(f"serving.num_servers is 0 but {why}. Set it to 1 or more.")
