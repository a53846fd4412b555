"""The section `critic`."""

from typing import Annotated, Literal

from pydantic import Field

from asyncrl.recipe.markers import PATH, PATH_OR_HUB_ID, PER_STEP
from asyncrl.recipe.sections.section import Count, Fraction, LearningRate, Positive, PositiveFloat, Section


class Critic(Section):
    """The value model of algorithm.advantage gae; ignored with other advantages. It starts as the base model,
    or as that at critic.path, and shares the trainer's layout, schedule and Adam settings, except for the
    learning rate and the clip of its gradient."""

    path: Annotated[str | None, PATH_OR_HUB_ID] = None
    """Model that the critic starts as: a folder, a hub id, or an earlier run as model.path names one, such as
    runs/sft@best. Its layers and tokenizer are the policy's. For a policy that starts elsewhere than from
    the model that knows the task best. Default: model.path."""
    learning_rate: Annotated[LearningRate, PER_STEP] = 1e-5
    """Adam learning rate, after trainer.warmup_steps. The default is verl's."""
    warmup_steps: Count = 0
    """First steps that train the critic alone, so that the policy never follows an untrained critic. Each
    batch still counts as a policy version, with unchanged weights. Counted in trainer.schedule_unit:
    optimizer_steps are the critic's own, and the batch of the last of them is still the critic's alone."""
    warmup_run: Annotated[str | None, PATH] = None
    """Run that has ended and whose graded responses are the batches of critic.warmup_steps, in the order in
    which it admitted them: nothing is generated before the policy learns. Its journal must still hold their
    tokens (replay.keep_steps). For a second run on the same task. Default: the policy's own responses."""
    optimizer_steps_per_batch: Positive | None = None
    """Mini-batches per batch for the critic (Open-Reasoner-Zero: 12); another number than the policy's costs
    one more forward pass of the critic. Default: trainer.optimizer_steps_per_batch."""
    passes: Positive = 1
    """Times that the critic trains on each batch, always towards the targets of before the batch, which
    stay as they are (SAO: 2): it learns faster than the policy that leans on it."""
    advantages_from: Literal["before", "after"] = "before"
    """The critic whose values the policy's advantages are of.
    before: as it was before the batch.
    after: as the batch has left it, by one more forward pass (SAO). The targets stay those of before."""
    frozen: Literal["none", "attention"] = "none"
    """Layers of the critic that keep the weights they start with.
    none: every layer is trained.
    attention: all attention stays, whatever its kind (SAO, for large mixtures of experts, where most of the
    critic's gradient norm is in it). A reproduction trains all of a dense critic: neither was compared."""
    clip_grad_norm: PositiveFloat | None = None
    """Norm that the critic's gradient is clipped to. Its gradients are mostly far larger than the policy's:
    one clip for both starves it (Lego-RL: 10). Default: trainer.clip_grad_norm."""
    cut_off: Literal["ended", "continued"] = "ended"
    """The state behind a response that was cut off at rollout.max_new_tokens.
    ended: nothing is expected after the cut, so that the reward alone judges the response and teaches
    brevity.
    continued: the value at its last token is expected after it (StepFun's MIS-PO). For a limit that cuts off
    what might have become right; nothing then teaches brevity."""
    gae_lambda: Fraction | None = None
    """Lambda of the critic's targets, where it is not the policy's (VAPO: 1, beside
    algorithm.advantage.length_alpha). v_trace has one for both. Default: algorithm.advantage.gae_lambda."""
    targets: Literal["gae", "v_trace"] = "gae"
    """Targets of the values.
    gae: generalized advantages plus the values, of the policies that sampled.
    v_trace: the same of the trainer's policy, by importance ratios capped at v_trace_cap; the policy's
    advantages follow from it. For stale data; costs one more forward pass of the policy."""
    v_trace_cap: PositiveFloat = 1.0
    """Upper bound of v_trace's ratios (IMPALA: 1)."""
    value_range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    """Lowest and highest return that the task allows: values stay inside, by a sigmoid over the head, and
    begin in the middle (BPCO's bounded head). For known rewards, such as [0, 1]: no value then promises more
    than there is. Default: values of any size, which begin at 0."""
    value_clip: PositiveFloat | None = 0.5
    """PPO value-clip range around the pre-step value; null: no clip."""
