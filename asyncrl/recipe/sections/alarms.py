"""The sections that watch a run: `alarms`, `view` and the list `trackers`."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from asyncrl.errors import did_you_mean
from asyncrl.recipe.sections.section import OBJECT, Count, Fraction, Positive, PositiveFloat, Section
from asyncrl.recipe.terms import Group


class Alarms(Section):
    """When a run raises an alarm: one message when it begins, one when it ends (docs/alarms.md). Means are
    over the last 5 steps. null turns an alarm off."""

    entropy_nats: PositiveFloat | None = 0.02
    """Entropy collapse: mean entropy per token below this, in nats, and below a fifth of the first steps',
    while a tenth of the responses or more is wrong. A policy this sure samples the same response again and
    again, so groups have no signal; healthy runs end above 0.04."""
    length_growth: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = 3.0
    """Length explosion: responses grow to this many times their length 20 steps before while no more of them
    are correct. Longer reasoning that pays off comes with more correct responses."""
    length_shrink: Annotated[float, Field(gt=0, lt=1)] | None = 0.33
    """Length collapse: responses shrink to this share of their length 20 steps before while no more of them
    are correct. The model has stopped reasoning."""
    cut_share: Fraction | None = 0.5
    """Length explosion: share of the responses that are cut at rollout.max_new_tokens, if it has risen by a
    fifth of all responses within 20 steps. A cut response has no answer, so it teaches nothing but its
    length. The live line highlights a larger share."""
    run_on_p95: Fraction | None = 1e-3
    """Run-on: probability of going on where a response ended, 95th percentile of the responses, above this
    and ten times that of 20 steps before or of the first steps. Responses are about to run into
    rollout.max_new_tokens. The gradient of a token that is nearly certain is tiny, and Adam makes whole
    steps of it all the same: raise trainer.adam_epsilon."""
    reward_without_heldout: Fraction | None = 0.15
    """How much more the share of correct training responses rose than held-out accuracy, beyond its interval,
    since the last evaluation at least 10 steps ago (or twice this since the first one), in two evaluations
    in a row. The policy may be pleasing the verifier instead of solving tasks: read the responses. Healthy
    small runs, whose greedy answers improve late, reach 0.09 (since the first evaluation: 0.2)."""
    mismatch_kl: PositiveFloat | None = 0.01
    """KL per token, in nats, between trainer and servers on tokens of the current version; also a tenth of it
    if that is ten times the first steps'. If all of these tokens were sampled on an older version's cache:
    twice it. float32 has about 1e-9, float16 5e-5, bfloat16 3e-3; above 0.01 gradients belong to another
    policy than the one that sampled. The live line highlights a larger one."""
    effective_share: Fraction | None = 0.3
    """Effective sample size of the unclipped importance weights, as a share: of a step's sequences below this
    and below half of the first steps', or of its tokens below this. Few of them then carry the gradient,
    which comes before collapses of asynchronous runs. Equal weights have 1."""
    capped_share: Fraction | None = 0.05
    """Share of the tokens whose importance weight is cut at algorithm.importance_weight.cap. Staleness 2 to 4
    stays below 0.02; more means that the cap does most of the correction. The live line highlights a
    larger one."""
    clipped_share: Fraction | None = 0.3
    """Share of the tokens whose gradient the surrogate clips. Token-level clips affect a few
    percent, sequence-level ones (GSPO) around 15%; more means that the step is too large."""
    trust_region_share: Fraction | None = 0.3
    """Share of the tokens outside algorithm.trust_region. A few percent are usual; more means that the step
    is too large or the data too old for the region."""
    left_out_share: Fraction | None = 0.5
    """Share of the tokens that the loss leaves out: staler than rollout.mask_staleness, masked or rejected by
    their weight, or without a finite log-prob. Also any step that leaves out every token and so does not
    change the weights. The live line highlights a larger share."""
    busiest_expert_share: Fraction | None = 0.5
    """Share of a layer's tokens that its busiest expert gets, in the layer with the largest, if it is half as
    large again as in the first steps. A router that sends every token the same way no longer chooses."""
    dead_group_share: Fraction | None = 0.9
    """Share of the groups of a batch whose advantages are all zero (with replay.drops_no_signal: share of the
    tokens that are dropped for that), while a twentieth of the responses or more is wrong: the step learns
    from the other groups alone."""
    no_correct_steps: Positive | None = 5
    """Steps in a row without a single correct response. The alarm says what the verifier looks for and how
    the responses end."""
    fault_share: Fraction | None = 0.02
    """Share of the verdicts that are faults: the verifier raised, died or was late, whether or not a retry
    gave a verdict. The others leave their groups; a verifier that fails on one kind of response biases what
    is learned."""
    answer_share: Fraction | None = 0.5
    """Share of the responses, over all tasks of a batch, with one and the same answer, where it has risen by
    a fifth since the first steps and a tenth of the responses or more is wrong: guessing."""
    nonfinite_share: Fraction | None = 0.001
    """Share of the tokens whose behavior log-prob is not finite, which are left out of the loss; and any step
    whose loss is NaN. A gradient that is not finite ends the run at once."""
    skipped_steps: Annotated[int, Field(ge=1, le=64)] | None = 3
    """Steps in a row in which a gradient overflowed float16, of the policy or of the critic, so that an
    optimizer step was skipped and its batch, or mini-batch, taught nothing. Healthy runs skip one after
    trainer.loss_scale_growth_steps, and a few at their start if trainer.initial_loss_scale is too large."""
    explained_variance: Annotated[float, Field(le=1, allow_inf_nan=False)] | None = 0.0
    """Mean explained variance of the critic over the last 20 steps of the policy below this: its values say
    less of the returns than their mean would. Healthy critics leave negative values within about 20 steps
    and reach 0.2 to 0.5. Train it longer before (critic.warmup_steps), more (critic.passes) or faster."""
    clipped_critic_share: Fraction | None = 0.8
    """Share of the last 20 steps in which the critic's gradient norm is above its clip. A clip of 1 under
    norms of 7 to 68 has starved critics of others (Lego-RL): raise critic.clip_grad_norm."""
    chosen_reward_loss: PositiveFloat | None = 0.1
    """Likelihood displacement, with stage dpo: the column dpo_chosen_reward below minus this, and
    dpo_rejected_reward below 0. Both responses of the pairs then lose probability to others, which nothing
    asked for. At dpo.beta 0.1 the default is one nat: chosen responses are a third as likely as before."""
    spike_row_share: Fraction | None = 0.5
    """Gradient spike: share of the squared gradient norm that one row of one parameter carries, in a step
    whose norm is more than five times the median of those before. Clipping then shrinks what the batch
    teaches all other weights. In the embedding the row is that of a token that was never trained."""
    memory_growth: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = 1.5
    """Growth of the memory (resident set) of the controller, the largest trainer rank or the largest server,
    relative to its first five measurements after the 10th step, if it is at least half a GiB. From the first
    checkpoint on, whose copy stays in memory: to the five after it. Steady growth ends out of memory."""
    memory_limit_share: Fraction | None = 0.95
    """Part in use, without caches of files, of the memory that a control group (container, Slurm) allows on
    the controller's machine. Above it the kernel takes pages away that programs need: everything becomes
    slow, then a process is killed. Fewer servers or ranks, smaller caches or more memory for the job help."""
    memory_stall_share: Fraction | None = 0.1
    """Share of the time between two steps in which some process waited for memory in that control group, as
    the kernel counts it (memory.pressure). Healthy runs have about 0."""


REFLECTION_WORDS = (
    *("wait", "mistake", "however", "but", "retry", "error", "verify", "wrong", "evaluate", "check"),
)
"""Words that DeepSeek-R1 counts over the training of R1-Zero (DeepSeek-AI 2025, Nature 645)."""
_Word = Annotated[str, Field(min_length=1, pattern=r"\S")]


class View(Section):
    """The page that shows a run."""

    groups_per_step: Count = 4
    """Groups per step whose importance ratio, entropy and advantage are kept for each token (0: none), the
    oldest new ones of the batch. 4 to 6 bytes per token; replay.keep_steps removes them with the tokens."""
    reflection_words: list[_Word] = list(REFLECTION_WORDS)
    """Words that are counted in each step's responses, whole and in any case: the metrics
    reflection_words_*. Inflected forms are words of their own. Default: those that DeepSeek-R1 counts. []:
    none."""


BUILT_IN = {
    "tensorboard": (),
    "wandb": ("project", "entity", "mode", "tags"),
    "mlflow": ("project", "uri", "tags"),
    "trackio": ("project", "tags"),
}
"""Name -> the settings that it has."""
_PLUGIN = re.compile(r"[^:\n]+:[A-Za-z_]\w*")
DEFAULT_PROJECT = "asyncrl"


class Tracker(Group):
    """One tracker. A name alone is a mapping with that name."""

    name: Annotated[str, OBJECT]
    """tensorboard: event files in RUN/trackers/tensorboard.
    wandb: Weights & Biases; WANDB_API_KEY or `wandb login` names the account.
    mlflow: an MLflow server or store.
    trackio: its database on this machine, as `trackio show` reads it.
    Or your own function that opens one: "package.module:function" or "./file.py:function"."""
    project: str | None = None
    """Project name (wandb, trackio) or experiment name (mlflow). Default: asyncrl. The run is named after its
    recipe."""
    entity: str | None = None
    """User or team of wandb. Default: the one that is logged in."""
    mode: Literal["online", "offline"] = "online"
    """Whether rows are sent during the run (wandb).
    online: they are sent as they come.
    offline: they stay in RUN/trackers/wandb, for `wandb sync`."""
    uri: str | None = None
    """Server or store (mlflow). Default: MLFLOW_TRACKING_URI, else RUN/trackers/mlflow.db."""
    tags: list[str] = []
    """Tags of the run (wandb, mlflow, trackio)."""
    options: Annotated[dict[str, Any], OBJECT] = {}
    """Settings of your own function."""

    def is_built_in(self) -> bool:
        return self.name in BUILT_IN

    def label(self) -> str:
        """Name of its files."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", self.name.rpartition("/")[2])

    @model_validator(mode="after")
    def _check(self) -> "Tracker":
        if not self.is_built_in() and not _PLUGIN.fullmatch(self.name):
            raise ValueError(
                f'trackers has "{self.name}", expected one of {", ".join(BUILT_IN)}, or your own '
                f'function as "package.module:function" or "./file.py:function".'
                f"{did_you_mean(self.name, BUILT_IN)}"
            )
        known = BUILT_IN.get(self.name, ("options",))
        for key in sorted(self.model_fields_set - {"name", *known}):
            # A resolved recipe names every key.
            if getattr(self, key) != Tracker.model_fields[key].default:
                its = f"It has {', '.join(known)}." if known else "It has none."
                raise ValueError(f'trackers: "{self.name}" has no setting {key}. {its} Remove {key}.')
        return self


def _check_names(trackers: list[Tracker]) -> list[Tracker]:
    labels = [tracker.label() for tracker in trackers]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f'trackers names "{label}" twice. Keep one of them.')
    return trackers


Trackers = Annotated[list[Tracker], AfterValidator(_check_names)]
