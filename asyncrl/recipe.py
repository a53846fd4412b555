"""The recipe: one YAML file, one pydantic schema, one class per section, each field documented under it.

Owns every default. Unknown keys, wrong types and combinations that cannot work are InputErrors that name
the key and, where one is near, the key that was probably meant. Components take their own section.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from asyncrl.errors import InputError

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Frozen, strict about keys, lenient about `1` for `1.0` only."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Prepare(Section):
    """Makes data and a base model before the first run; skipped when the folder's stamp matches."""

    target: str
    """"package.module:function", called as function(folder, progress, **options)."""
    folder: str
    """Where it writes, and where `model.path` and `data.*` usually point."""
    options: dict[str, Any] = {}
    """Passed on; a change makes everything anew."""


class Model(Section):
    path: str
    """A Hugging Face folder: config.json, safetensors, tokenizer.json."""
    context_tokens: Positive | None = None
    """Longest prompt + response, in tokens. Default: the model's own max_position_embeddings."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights and activations on both engines; bfloat16 keeps float32 master weights in the optimizer."""


class Data(Section):
    train: str
    """JSONL rows: {"prompt": str or chat messages, "answer": ..., "verifier": optional}."""
    heldout: str | None = None
    """Same form, never trained on."""
    is_shuffled: bool = True
    """A new seeded permutation per epoch; false keeps the file's order."""


class Verifying(Section):
    default: str = "math"
    """Verifier of rows that name none: a built-in, "package.module:Name" or "./my.py:Name"."""
    options: dict[str, Any] = {}
    """Of the default verifier."""
    num_workers: Positive = 1
    """Killable processes for symbolic work; plain answers are graded without them."""
    timeout_seconds: PositiveFloat = 2.0
    """Wall-clock limit of one verification; a late worker is killed, the answer is wrong."""


class Rollout(Section):
    groups_per_batch: Positive = 16
    """Tasks per optimizer step."""
    samples_per_group: Annotated[int, Field(ge=2)] = 8
    """Trajectories per task; they share a baseline."""
    max_staleness: Count = 2
    """Largest (trainer version - token's version) that may be trained; 0 is synchronous, on-policy."""
    temperature: PositiveFloat = 1.0
    max_new_tokens: Positive = 64
    stream_interval_tokens: Positive = 16
    """Tokens per streamed chunk: smaller loses less at a crash, larger costs less."""
    interrupt: Literal["continue", "retract", "abort"] = "continue"
    """What a publish does to a trajectory in work: it goes on over the old version's keys and values (tagged
    so), has them computed anew, or is aborted and resumed from its prefix on any server."""
    tokens_per_round: Positive | None = None
    """At most this many tokens per request: a longer trajectory is parked in the queue, which frees its place
    on the server, and resumed from its prefix where there is room (Kimi k1.5). Default: no limit."""
    max_fault_retries: Count = 2
    """Times a faulty verification or a broken stream is tried again before its trajectory is dropped."""


class Replay(Section):
    order: Literal["admission", "strict_admission", "freshness", "signal"] = "admission"
    """Which ready groups a batch takes first: the oldest, those with the newest tokens, or those with the
    largest variance of correctness; the staleness bound comes before. strict_admission waits for stragglers:
    no length bias, but the trainer waits with them."""
    drops_no_signal: bool = False
    """Dynamic sampling: groups whose trajectories are all equally correct are dropped and others admitted."""
    max_dropped_in_a_row: Positive = 256
    """After so many groups without a signal the next is trained anyway, so that a run always goes on."""


class Serving(Section):
    num_servers: Positive = 1
    """Local servers to start; ignored when `servers` is given."""
    servers: list[str] = []
    """URLs of servers that already run (SGLang 0.5.23), for instance on other machines."""
    threads_per_server: Positive = 1
    """CPU threads; more threads than cores makes a server 10-20 times slower."""
    tensor_parallel_size: Positive = 1
    max_total_tokens: Positive = 32768
    """Size of the key-value cache in tokens."""
    max_running_requests: Positive = 128
    """Requests decoded at once per server."""
    first_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the first local server, the next ones count up; 0 takes free ports."""
    start_timeout_seconds: PositiveFloat = 180.0
    request_timeout_seconds: PositiveFloat = 300.0
    """Longest silence of a stream before its server is called dead."""
    extra_arguments: list[str] = []
    """Appended to the server's command line."""


class Algorithm(Section):
    advantage: Literal["grpo", "dr_grpo"] = "grpo"
    """grpo divides by the group's standard deviation, dr_grpo does not."""
    importance_weight: Literal["none", "truncated"] = "truncated"
    """Correction of proximal against behavior policy, per token."""
    importance_cap: PositiveFloat = 2.0
    """Upper bound C of the truncated importance weight."""
    surrogate: Literal["reinforce", "ppo_clip"] = "ppo_clip"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Policy ratio is clipped below at 1 - clip_low."""
    clip_high: PositiveFloat = 0.2
    """Policy ratio is clipped above at 1 + clip_high (DAPO raises it to 0.28)."""
    reduction: Literal["token_mean", "dr_grpo_constant"] = "token_mean"
    """token_mean: over all response tokens; dr_grpo_constant: sum / (sequences x max_new_tokens)."""


class Trainer(Section):
    num_steps: Positive = 50
    """Optimizer steps of the whole run."""
    num_processes: Positive = 1
    """Data-parallel trainer processes."""
    threads_per_process: Positive = 1
    tokens_per_micro_batch: Positive = 8192
    """Packed tokens per forward-backward; lower it to save memory."""
    learning_rate: PositiveFloat = 1e-4
    warmup_steps: Count = 0
    adam_beta1: Fraction = 0.9
    adam_beta2: Fraction = 0.95
    adam_epsilon: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip_grad_norm: PositiveFloat = 1.0
    checkpoint_every_steps: Positive = 25
    """A crash costs at most the training (not the generation) of this many steps."""
    step_timeout_seconds: PositiveFloat = 3600.0
    """Longest time from a batch to the next take, checkpoint included, before the trainer is called hung and
    restarted from its last checkpoint."""
    keep_checkpoints: Positive = 2
    """How many of the latest checkpoints stay on disk."""


class Evaluation(Section):
    every_steps: Count = 10
    """Steps between greedy evaluations during training; 0 evaluates only before and after."""
    num_tasks: Positive = 256
    """At most this many held-out tasks, the first of the file."""
    samples_per_task: Positive = 4
    """For avg@k and pass@k before and after training; during training only greedy answers are taken."""
    temperature: PositiveFloat = 1.0
    """Of the samples for avg@k and pass@k."""
    stop_at_accuracy: Fraction | None = None
    """End the run early when a greedy evaluation during training reaches this."""


class Recipe(Section):
    name: str
    """Names the run folder."""
    seed: Count = 0
    """Of data order, initialisation and sampling where the engine allows it."""
    run_folder: str = "runs/{name}"
    """Where the run writes; running again on the same folder resumes."""
    prepare: Prepare | None = None
    model: Model
    data: Data
    verifying: Verifying = Verifying()
    rollout: Rollout = Rollout()
    replay: Replay = Replay()
    serving: Serving = Serving()
    algorithm: Algorithm = Algorithm()
    trainer: Trainer = Trainer()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _check_combinations(self) -> "Recipe":
        context, longest = self.model.context_tokens, self.rollout.max_new_tokens
        if context is not None and longest >= context:
            raise ValueError(
                f"rollout.max_new_tokens is {longest} but model.context_tokens is {context}: no room is "
                f"left for a prompt. Lower rollout.max_new_tokens or raise model.context_tokens."
            )
        capacity, group = self.serving.max_running_requests, self.rollout.samples_per_group
        if group > capacity:
            raise ValueError(
                f"rollout.samples_per_group is {group} but serving.max_running_requests is {capacity}: a "
                f"group cannot run at once. Raise serving.max_running_requests to at least {group}."
            )
        if self.evaluation.stop_at_accuracy is not None and not self.evaluation.every_steps:
            raise ValueError(
                "evaluation.stop_at_accuracy is set but evaluation.every_steps is 0, so nothing is measured "
                "during training. Set evaluation.every_steps to 1 or more."
            )
        if (self.evaluation.every_steps or self.evaluation.stop_at_accuracy) and self.data.heldout is None:
            raise ValueError(
                "evaluation.every_steps is set but data.heldout is missing. Name a held-out file in "
                "data.heldout, or set evaluation.every_steps to 0."
            )
        return self

    def folder(self) -> Path:
        return Path(self.run_folder.format(name=self.name))


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe at `path` with "section.key=value" overrides (values are YAML). Raises InputError."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"There is no recipe at {path}. The ones shipped are in recipes/.") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(raw, dict):
        raise InputError(
            f"{path} holds {type(raw).__name__}, not the sections of a recipe (name, model, data, ...)."
        )
    for override in overrides:
        _apply_override(raw, override)
    return parse_recipe(raw, source=str(path))


def parse_recipe(raw: dict[str, Any], *, source: str) -> Recipe:
    """A validated recipe from plain data; `source` names it in errors. Raises InputError."""
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        lines = [_explain(details) for details in error.errors()]
        raise InputError("\n".join(f"{source}: {line}" for line in lines)) from None


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML: every key, defaults included; `load_recipe` reads it back."""
    return yaml.safe_dump(recipe.model_dump(), sort_keys=False, allow_unicode=True)


def _apply_override(raw: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator or not key:
        raise InputError(
            f'"{override}" is not an override. Write section.key=value, such as rollout.max_staleness=0.'
        )
    *parents, last = key.split(".")
    place = raw
    for parent in parents:
        if place.get(parent) is None:
            place[parent] = {}
        place = place[parent]
        if not isinstance(place, dict):
            raise InputError(f'"{override}": {parent} is a value, not a section.')
    try:
        place[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise InputError(f'"{override}": the value is not YAML: {error}') from error


def _explain(details: Any) -> str:
    location = ".".join(str(part) for part in details["loc"])
    if details["type"] == "extra_forbidden":
        return f"unknown key {location}.{_nearest(details['loc'])}"
    if details["type"] == "missing":
        return f"{location} is missing and has no default."
    if details["type"] == "value_error":
        return str(details["ctx"]["error"])
    message = details["msg"][0].lower() + details["msg"][1:]
    return f"{location} is {details['input']!r}: {message}."


def _nearest(location: tuple[str | int, ...]) -> str:
    section: type[BaseModel] = Recipe
    for part in location[:-1]:
        kind = section.model_fields[str(part)].annotation
        candidates = [kind, *getattr(kind, "__args__", ())]
        section = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    names = list(section.model_fields)
    near = difflib.get_close_matches(str(location[-1]), names, n=1)
    return f" Did you mean {near[0]}?" if near else f" Known here: {', '.join(names)}."
