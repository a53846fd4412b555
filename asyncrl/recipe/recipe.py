"""A whole recipe; `checks` holds what its sections must be together."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationInfo, model_validator

from asyncrl.recipe.checks import CHECKS
from asyncrl.recipe.checks.training import with_lora_rate
from asyncrl.recipe.presets import with_preset
from asyncrl.recipe.sections.alarms import Alarms, Trackers, View
from asyncrl.recipe.sections.algorithm import Algorithm
from asyncrl.recipe.sections.data import Data, Prepare, Prompt
from asyncrl.recipe.sections.evaluation import Evaluation
from asyncrl.recipe.sections.model import Model
from asyncrl.recipe.sections.rollout import Replay, Rollout, Verifying
from asyncrl.recipe.sections.section import CHANGEABLE, OBJECT, PATH, TASK_ROWS, PositiveFloat, Section, Seed
from asyncrl.recipe.sections.serving import Cluster, Placement, Serving
from asyncrl.recipe.sections.stages import DPO, SFT, Teacher
from asyncrl.recipe.sections.trainer import Critic, Fall, LateFall, Muon, Trainer
from asyncrl.recipe.sections.turns import Agent, Turns
from asyncrl.recipe.stage import Stage, with_stage
from asyncrl.recipe.unread_keys import check_unread
from asyncrl.records import PolicyVersion

UNREAD_ALLOWED = {"may state": "what nothing reads"}
"""Context of a validation that lets such keys pass."""


# The value at a step follows from the recipe alone: resumed runs, restarted trainers and `asyncrl reproduce`
# use the same values and store no state.
@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rates of one model's optimizer."""

    kind: str
    """One of trainer.learning_rate_schedule."""
    peak: float
    floor: float
    warmup_steps: int
    end_step: int
    """Last step above the floor; steps count from 1, in the unit of the recipe."""
    decay_steps: int
    """Length of the fall: the last steps up to `end_step`."""
    first_version: PolicyVersion = 0
    """The version that the model is first trained from."""
    steps_per_batch: int | None = None
    """Optimizer steps per batch where the schedule counts those; None where it counts batches."""
    muon_share: float = 1.0
    """Rate of Muon's matrices, as a share of the rate of each step."""

    def rate(self, version: PolicyVersion, part: int = 0) -> float:
        """The rate of the mini-batch `part`, counted from 0, of the batch that is trained from `version`."""
        batches = version - self.first_version
        return self.at(
            batches + 1 if self.steps_per_batch is None else batches * self.steps_per_batch + part + 1
        )

    def at(self, step: int) -> float:
        """Rate of a step: n / warmup_steps of the peak in step n of the warm-up, then the peak, and below it
        from the second step of the fall on: as torch's LinearLR and CosineAnnealingLR, one after the other.
        """
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        fallen = step - 1 - (self.end_step - self.decay_steps)
        if self.kind == "constant" or fallen <= 0:
            return self.peak
        if fallen >= self.decay_steps:
            return self.floor
        share = fallen / self.decay_steps
        left = (1 + math.cos(math.pi * share)) / 2 if self.kind == "cosine" else 1 - share
        return self.floor + (self.peak - self.floor) * left


def make_schedule(
    section: Trainer, peak: float, *, steps_per_batch: int, first_version: PolicyVersion = 0
) -> Schedule:
    """The schedule of `section` for a model that is trained from `first_version` on.

    Raises ValueError for a fall that has no room behind the warm-up.
    """
    schedule, counts_batches = section.learning_rate_schedule, section.schedule_unit == "batches"
    num_batches = max(1, section.num_steps - first_version)
    stated = schedule.steps if isinstance(schedule, Fall) else None
    end = stated or num_batches * (1 if counts_batches else steps_per_batch)
    room = end - section.warmup_steps
    decay = (schedule.decay_steps or math.ceil(end / 10)) if isinstance(schedule, LateFall) else room
    if isinstance(schedule, Fall) and not 1 <= decay <= room:
        is_late = isinstance(schedule, LateFall)
        raise ValueError(
            f"trainer.learning_rate_schedule {schedule.name} ends at step {end} (in "
            f"{section.schedule_unit}), but trainer.warmup_steps is {section.warmup_steps}"
            f"{f' and its fall takes {decay}' if is_late else ''}: the rate has no room to fall. Lower "
            f"trainer.warmup_steps{' or trainer.learning_rate_schedule.decay_steps' if is_late else ''}, or "
            f"raise trainer.learning_rate_schedule.steps (default: the whole run, trainer.num_steps)."
        )
    optimizer = section.optimizer
    muon_rate = optimizer.learning_rate if isinstance(optimizer, Muon) else None
    return Schedule(
        kind=schedule.name,
        peak=peak,
        floor=peak * schedule.min_share if isinstance(schedule, Fall) else 0.0,
        warmup_steps=section.warmup_steps,
        end_step=end,
        decay_steps=decay,
        first_version=first_version,
        steps_per_batch=None if counts_batches else steps_per_batch,
        muon_share=(muon_rate or section.learning_rate) / section.learning_rate,
    )


class Recipe(Section):
    """One run."""

    name: str
    """Name of the run folder."""
    stage: Annotated[Stage, TASK_ROWS] = "rl"
    """Source of what the run learns; docs/stages.md.
    rl: its own answers to tasks, by verifiers.
    sft: rows that it imitates; no server, no verifier.
    dpo: pairs of responses, of which one is preferred; no server, no verifier."""
    seed: Seed = 0
    """Seeds data order, initialization and, where the engine allows it, sampling."""
    run_folder: Annotated[str, PATH, CHANGEABLE] = "runs/{name}"
    """Output folder, relative to the recipe's folder; {name} is replaced. Running again on it resumes."""
    memory_gib: Annotated[PositiveFloat | None, CHANGEABLE] = None
    """Memory of this machine that the run may use. A run planned to need more is refused.
    Default: what is free at the start, or what a control group (container, Slurm) leaves."""
    prepare: Annotated[Prepare | None, CHANGEABLE] = None
    model: Model
    data: Data
    prompt: Annotated[Prompt | None, TASK_ROWS] = None
    verifying: Verifying = Verifying()
    rollout: Rollout = Rollout()
    turns: Turns = Turns()
    agent: Agent = Agent()
    replay: Replay = Replay()
    serving: Annotated[Serving, CHANGEABLE] = Serving()
    cluster: Annotated[Cluster, CHANGEABLE] = Cluster()
    algorithm: Algorithm = Algorithm()
    teacher: Teacher = Teacher()
    critic: Critic = Critic()
    trainer: Trainer = Trainer()
    sft: SFT = SFT()
    dpo: DPO = DPO()
    evaluation: Annotated[Evaluation, CHANGEABLE] = Evaluation()
    alarms: Annotated[Alarms, CHANGEABLE] = Alarms()
    placement: Annotated[Placement, CHANGEABLE] = Placement()
    view: Annotated[View, CHANGEABLE] = View()
    trackers: Annotated[Trackers, OBJECT, CHANGEABLE] = []
    """Other places that the run's numbers are sent to: names, or mappings with settings. Each runs in its own
    process, so one that hangs or fails does not hold up the run. Needs `make setup TRACKERS=1`."""

    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run_folder.replace("{name}", self.name))

    def learns_from_rows(self) -> bool:
        """Whether what is trained comes from data.train itself, and not from servers."""
        return self.stage != "rl"

    def replays_routes(self) -> bool:
        """Whether servers say which experts each token took, and the trainer takes the same."""
        return self.algorithm.routing_replay == "rollout"

    def groups_per_step(self) -> int:
        """Most groups that a step trains on, repeated ones included."""
        return self.rollout.groups_per_batch + self.replay.repeated_groups_per_batch

    def trajectories_per_group(self) -> int:
        """Sampled ones, plus the greedy one if the advantage needs it."""
        return self.rollout.samples_per_group + self.algorithm.needs_greedy()

    def has_template(self) -> bool:
        """Whether prompts go through a template of the recipe."""
        return self.prompt is not None and self.prompt.template is not None

    def chat_template_kwargs(self) -> dict[str, Any]:
        """Variables that the model's chat template is told."""
        return {} if self.prompt is None else self.prompt.chat_template_kwargs

    def renders_history(self) -> bool:
        """Whether the chat template renders the context of each turn."""
        return self.prompt is not None and self.prompt.history == "as_rendered"

    def has_verdicts(self) -> bool:
        """Whether verifiers judge what is trained."""
        return not self.learns_from_rows() and not self.teacher.is_alone()

    def of_teacher(self) -> "Recipe":
        """The same with the teacher in place of the model, and the server that the run starts for it in place
        of those of rollouts."""
        teacher = self.teacher
        assert teacher.path is not None
        return self._beside(
            Model(path=teacher.path, revision=teacher.revision, dtype=teacher.dtype),
            tensor_parallel_size=teacher.tensor_parallel_size,
            max_total_tokens=teacher.max_total_tokens or self.serving.max_total_tokens,
            extra_arguments=teacher.extra_arguments,
        )

    def of_opponent(self, name: str) -> "Recipe":
        """The same for an opponent of agent.opponents."""
        model = Model(
            path=self.agent.opponents[name],
            dtype=self.model.dtype,
            context_tokens=self.model.context_tokens,
            float32_logits=self.model.float32_logits,
        )
        # A server says the version of its weights with each token.
        return self._beside(model, extra_arguments=["--weight-version", "0"])

    def _beside(self, model: Model, **serving: Any) -> "Recipe":
        # Another model: what fits the policy may not fit it.
        own = {
            "num_servers": 1,
            "servers": [],
            "attention_data_parallel_size": 1,
            "expert_parallel_size": 1,
            "quantization": None,
            "kv_cache_dtype": None,
            "first_port": 0,
        }
        return self.model_copy(
            update={"model": model, "serving": self.serving.model_copy(update=own | serving)}
        )

    def needs_messages(self) -> str | None:
        """The key because of which prompts must be chat messages, with its value in words; None without."""
        if self.renders_history():
            return "prompt.history is as_rendered"
        return None if self.turns.summarize is None else "turns.summarize is set"

    def longest_response(self) -> int:
        """Tokens behind the prompt at most, observed ones included; the context may allow fewer."""
        turns = self.turns
        num_observed = (turns.max_turns - 1) * turns.max_observed_tokens if turns.is_on() else 0
        return self.rollout.max_new_tokens + num_observed

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, raw: Any) -> Any:
        return with_lora_rate(raw, with_preset(with_stage(raw)))

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> "Recipe":
        for check in CHECKS:
            check(self)
        if info.context is not UNREAD_ALLOWED:
            check_unread(self)
        return self

    def critic_steps_per_batch(self) -> int:
        """Optimizer steps of the critic on each batch, in all of its passes."""
        return self.critic_mini_batches() * self.critic.passes

    def critic_mini_batches(self) -> int:
        """Mini-batches of each pass of the critic over a batch."""
        return self.critic.optimizer_steps_per_batch or self.trainer.optimizer_steps_per_batch

    def critic_clip(self) -> float:
        """Norm that the critic's gradient is clipped to."""
        return self.critic.clip_grad_norm or self.trainer.clip_grad_norm

    def critic_model(self) -> Model:
        """The model that the critic starts as."""
        path = self.critic.path
        return self.model if path is None else self.model.model_copy(update={"path": path, "revision": None})

    def num_recorded_groups(self) -> int:
        """First groups of the run, which are those of critic.warmup_run."""
        has_recorded = self.algorithm.needs_critic() and self.critic.warmup_run is not None
        return self.critic_warmup_batches() * self.rollout.groups_per_batch if has_recorded else 0

    def critic_warmup_batches(self) -> int:
        """First batches that train the critic alone."""
        warmup = self.critic.warmup_steps
        if self.trainer.schedule_unit == "optimizer_steps":
            return -(-warmup // self.critic_steps_per_batch())
        return warmup

    def policy_schedule(self) -> Schedule:
        """Learning rates of the policy, which begin when the critic's warm-up is over."""
        trainer = self.trainer
        return make_schedule(
            trainer,
            trainer.learning_rate,
            steps_per_batch=trainer.optimizer_steps_per_batch,
            first_version=self.critic_warmup_batches() if self.algorithm.needs_critic() else 0,
        )

    def critic_schedule(self) -> Schedule:
        """Learning rates of the critic, of the same shape."""
        steps = self.critic_steps_per_batch()
        return make_schedule(self.trainer, self.critic.learning_rate, steps_per_batch=steps)
