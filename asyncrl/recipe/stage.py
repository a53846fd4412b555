"""The stage of a recipe: what it learns from, and so which sections mean something.

A stage that learns from rows samples nothing. Its batches come from the same queue over the same wire as
those of RL, as groups of one trajectory each; the keys that say so are set here. Others that only RL reads
are refused where they are stated.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from asyncrl.recipe.sections.algorithm import Algorithm
from asyncrl.recipe.sections.data import Data
from asyncrl.recipe.sections.rollout import Replay, Rollout, Verifying
from asyncrl.recipe.sections.serving import Placement, Serving
from asyncrl.recipe.sections.stages import DPO, SFT, Teacher
from asyncrl.recipe.sections.trainer import Critic, Trainer
from asyncrl.recipe.sections.turns import Agent, Turns
from asyncrl.recipe.sources import ColumnMapping, Source
from asyncrl.recipe.terms import agrees
from asyncrl.system.words import as_written

if TYPE_CHECKING:
    from asyncrl.recipe.recipe import Recipe

Stage = Literal["rl", "sft", "dpo"]
OF_STAGES: dict[str, type[BaseModel]] = {"sft": SFT, "dpo": DPO}
"""Stage that learns from rows -> its section."""

_SAMPLING = "nothing is sampled: the rows are what is learned"
_NO_REWARD = "there is no reward and no advantage"
_NOT_STALE = "no token is stale"
_OF_STALENESS = ("splits_staleness", "learning_rate_scaling")
"""Keys of `trainer` about tokens that older versions sampled."""
_ONLY_RL: dict[str, tuple[type[BaseModel], str]] = {
    "rollout": (Rollout, _SAMPLING),
    "turns": (Turns, _SAMPLING),
    "agent": (Agent, _SAMPLING),
    "algorithm": (Algorithm, _NO_REWARD),
    "teacher": (Teacher, _SAMPLING),
    "critic": (Critic, _NO_REWARD),
    "replay": (Replay, "each row is learned once per epoch"),
}
"""Section -> why a stage that learns from rows has no use for it."""
_ALLOWED = ("replay.keep_steps", "verifying.folder", "placement.device", "placement.trainer")
_FIXED: dict[str, Any] = {
    "rollout.samples_per_group": 1,
    "rollout.max_new_tokens": 1,
    # The next batch is there before it is asked for.
    "rollout.max_staleness": 1,
    "algorithm.advantage": "reinforce_pp",
    "replay.order": "strict_admission",
}
"""Keys of the queue in stages that learn from rows."""


def generates(raw: Mapping[str, Any]) -> bool:
    """Whether a stage that learns from rows also has servers, which answer held-out tasks."""
    evaluation = raw.get("evaluation")
    named = ("verifier", "benchmarks", "sets")
    return isinstance(evaluation, dict) and any(evaluation.get(key) for key in named)


def with_stage(raw: Any) -> Any:
    """Plain data of a recipe, completed by what its stage decides. Raises ValueError for a key that its stage
    has no use for."""
    if not isinstance(raw, dict):
        return raw
    stage = raw.get("stage", "rl")
    if not isinstance(stage, str):
        # Refused for itself, as is a name that is no stage.
        return raw
    for other, section in OF_STAGES.items():
        if other != stage:
            _refuse(raw, other, section, {}, f"stage is {stage}", f"Remove it, or set stage to {other}.")
    if stage not in OF_STAGES:
        return raw
    fixed = _FIXED | {"rollout.groups_per_batch": _rows_per_batch(raw, stage)}
    said = f"stage is {stage}, in which "
    for name, (section, why) in _ONLY_RL.items():
        _refuse(raw, name, section, fixed, said + why, "Remove it.")
    _refuse(raw, "trainer", Trainer, {}, said + _NOT_STALE, "Remove it.", _OF_STALENESS)
    if generates(raw):
        if raw["evaluation"].get("max_new_tokens") is None:
            raise ValueError(
                f"evaluation.max_new_tokens is not set, but stage is {stage}, which has no rollouts to take "
                f"it from. Say how long an answer may be."
            )
    else:
        why = f"{said}no server is started unless evaluation.verifier, benchmarks or sets ask for answers"
        _refuse(raw, "verifying", Verifying, fixed, why, "Remove it, or set evaluation.verifier.")
        _refuse(raw, "serving", Serving, {"serving.num_servers": 0}, why, "Remove it.", ("num_servers",))
        fixed["serving.num_servers"] = 0
    _refuse(raw, "placement", Placement, fixed, f"{said}trainer and servers share nothing", "Remove it.")
    evaluation = raw.get("evaluation")
    if isinstance(evaluation, dict) and (count := evaluation.get("num_servers")):
        raise ValueError(
            f"evaluation.num_servers is {count} but stage is {stage}, whose servers only "
            f"evaluate. Remove it; serving.num_servers says how many there are."
        )
    return _completed(raw, fixed)


def _rows_per_batch(raw: Mapping[str, Any], stage: str) -> Any:
    stated = raw.get(stage)
    default = OF_STAGES[stage].model_fields["rows_per_batch"].default
    return stated.get("rows_per_batch", default) if isinstance(stated, dict) else default


def _refuse(
    raw: Mapping[str, Any],
    name: str,
    section: type[BaseModel],
    fixed: Mapping[str, Any],
    why: str,
    remedy: str,
    keys: Sequence[str] | None = None,
) -> None:
    """Raises ValueError where `raw` states a key of the section `name` with another value than the default,
    or than `fixed` has; `keys` are those that are looked at."""
    stated = raw.get(name)
    if not isinstance(stated, dict):
        return
    # Unknown keys are refused elsewhere.
    for inner, default in section.model_construct().model_dump().items():
        key, value = f"{name}.{inner}", stated.get(inner, default)
        is_looked_at = keys is None or inner in keys
        if not is_looked_at or key in _ALLOWED or agrees(value, default) or value == fixed.get(key, default):
            continue
        raise ValueError(f"{key} is {as_written(value)} but {why}. {remedy}")


def _completed(raw: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    completed = dict(raw)
    for key, value in values.items():
        section, _, inner = key.partition(".")
        stated = completed.get(section)
        # What is no section is refused for itself.
        if stated is None or isinstance(stated, dict):
            completed[section] = {**(stated or {}), inner: value}
    return completed


_OF_TASKS = ("broken_rows", "max_prompt_tokens", "long_prompts", "selection", "mixture")
"""Keys of `data` about tasks, which rows that are learned are not."""


def check_columns(recipe: "Recipe") -> None:
    """Raises ValueError where rows cannot hold what the stage learns from."""
    stage, data, prompt = recipe.stage, recipe.data, recipe.prompt
    # A teacher alone asks for no answers.
    has_answers = not recipe.teacher.is_alone()
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


def check_asked_servers(recipe: "Recipe") -> None:
    """Raises ValueError where answers are asked for and no server gives them."""
    stage, serving, evaluation = recipe.stage, recipe.serving, recipe.evaluation
    is_asked = stage == "rl" or bool(evaluation.verifier or evaluation.benchmarks or evaluation.sets)
    if is_asked and not serving.servers and not serving.num_servers:
        why = "stage is rl" if stage == "rl" else "evaluation.verifier, benchmarks or sets ask for answers"
        raise ValueError(f"serving.num_servers is 0 but {why}. Set it to 1 or more.")
