"""The recipe: one YAML file, one pydantic schema, one class per section, each field documented under it.

Owns every default. Unknown keys, wrong types and combinations that cannot work are refused with the key and
the way out (recipe_file.py turns that into an InputError). Components take their own section.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LearningRate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
"""Adam moves each weight by about this much per step."""
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _one_of(*names: str) -> Callable[[str], str]:
    """A validator that takes one of `names` or the name of an object of the user's own."""

    def check(value: str) -> str:
        if value in names or ":" in value:
            return value
        known = ", ".join(f"'{name}'" for name in names)
        raise PydanticCustomError("term", f'Input should be {known} or "package.module:name"')

    return check


ADVANTAGE_NAMES = (
    *("grpo", "dr_grpo", "rloo", "remax", "reinforce_pp", "reinforce_pp_baseline", "opo", "pass_at_k"),
    "gae",
)
WEIGHT_NAMES = ("none", "truncated", "sequence_truncated", "masked", "sequence_masked")
REJECTION_NAMES = ("token_range", "geometric_mean", "second_moment", "token_veto")
SURROGATE_NAMES = ("reinforce", "ppo_clip", "gspo", "cispo", "gmpo")
RAW_ADVANTAGES = ("reinforce_pp", "gae")
"""A group gives its rewards; what they are worth shows in the batch, or by the critic: all groups teach."""
WHITENED_ADVANTAGES = ("reinforce_pp", "reinforce_pp_baseline")
CLIP_RANGES: dict[str, tuple[float | None, float]] = {
    "cispo": (None, 0.2),
    "gmpo": (round(1 - math.exp(-0.4), 4), round(math.exp(0.4) - 1, 4)),
}
"""Defaults of clip_low and clip_high by surrogate, of their papers; 0.2 and 0.2 for the others."""
AdvantageName = Annotated[str, AfterValidator(_one_of(*ADVANTAGE_NAMES))]
WeightName = Annotated[str, AfterValidator(_one_of(*WEIGHT_NAMES))]
RejectionName = Annotated[str, AfterValidator(_one_of(*REJECTION_NAMES))]
SurrogateName = Annotated[str, AfterValidator(_one_of(*SURROGATE_NAMES))]


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
    """Passed to the function; a change makes everything again."""


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
    folder: str | None = None
    """What "./my.py:Name" in the rows is relative to. Default: the recipe's folder."""
    num_workers: Positive = 1
    """Killable processes for symbolic work; plain answers are graded without them."""
    timeout_seconds: PositiveFloat = 2.0
    """Wall-clock limit of one verification; a late worker is killed, the answer is wrong."""
    max_faults_in_a_row: Positive = 24
    """A verifier that fails so often, retries included, over 20 seconds and without one verdict between, ends
    the run with its own error. Raise it where what it asks may be away for longer."""

    def own_files(self) -> Path:
        """What "./my.py:Name" is relative to."""
        return Path(self.folder or ".")


class Rollout(Section):
    groups_per_batch: Positive = 16
    """Tasks per optimizer step."""
    samples_per_group: Positive = 8
    """Trajectories per task; they share a baseline. 1 with algorithm.advantage gae only."""
    max_staleness: Count = 2
    """Largest (trainer version - token's version) that may be trained; 0 is synchronous, on-policy."""
    abort_staleness: Count | None = None
    """A group whose oldest token would be staler than this at its training is aborted and dropped, and others
    are admitted: at most max_staleness, which bounds what is admitted. Long responses are dropped first, a
    bias that length_bias in the metrics shows. Default: nothing is dropped."""
    mask_staleness: Count | None = None
    """Tokens staler than this are left out of the losses of policy and critic and their denominators, of KL
    in the reward and of whitening. Default: all count."""
    temperature: PositiveFloat = 1.0
    max_new_tokens: Positive = 64
    stream_interval_tokens: Positive = 16
    """Tokens per streamed chunk: smaller loses less at a crash, larger costs less."""
    interrupt: Literal["continue", "retract", "abort", "drain"] = "continue"
    """What a publish does to trajectories in flight.
    continue: keep generating on the old KV cache; such tokens are tagged.
    retract: recompute the KV cache with the new weights.
    abort: stop, and resume from the prefix on any server.
    drain: let them end first and start none; each has one version, and servers and trainer idle."""
    tokens_per_round: Positive | None = None
    """At most this many tokens per request: a longer trajectory is parked in the queue, which frees its place
    on the server, and resumed from its prefix where there is room (Kimi k1.5). Default: no limit."""
    oversampling: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Partial rollouts (APRIL): that many times groups_per_batch groups are generated at once; when the next
    batch is ready before the trainer asks for it, the stragglers are parked with their prefixes and resume
    first, with the newest weights, once it is taken. Default: all that max_staleness admits is generated."""
    max_fault_retries: Count = 2
    """Times a faulty verification or a broken stream is tried again before its trajectory is dropped."""


class Replay(Section):
    order: Literal["admission", "strict_admission", "freshness", "signal", "stalest"] = "admission"
    """Which ready groups a batch takes first: the oldest, those with the newest tokens, or those with a
    gradient, the largest variance of correctness first; the staleness bound comes before. strict_admission
    waits for stragglers: no length bias, but the trainer waits with them. stalest waits until all that the
    bound admits is ready: every batch is as stale as allowed, for experiments."""
    repeated_groups_per_batch: Count = 0
    """Previously trained groups added to each batch (0: none): more training per generated token (replay
    ratio). Never staler than rollout.max_staleness allows."""
    max_uses: Annotated[int, Field(ge=2)] = 2
    """How often a group is trained at most where groups are repeated, the first time included."""
    drops_no_signal: bool = False
    """Dynamic sampling: groups to which raw correctness gives advantages of 0 are dropped and others
    admitted, under most advantages those whose trajectories are all equally correct."""
    max_dropped_in_a_row: Positive = 256
    """After this many groups without a signal the next is trained anyway, so that a run cannot starve."""
    keep_steps: Positive = 200
    """Steps behind the last checkpoint whose tokens stay in the journal, for `asyncrl reproduce` and `view`;
    of older ones verdicts, versions and lengths stay. What a kept checkpoint may still need always stays."""


class Serving(Section):
    num_servers: Positive = 1
    """Local servers to start; ignored when `servers` is given."""
    servers: list[str] = []
    """URLs of servers that already run (SGLang 0.5.23), for instance on other machines. They must not have
    SGLANG_RETURN_ORIGINAL_LOGPROB set, which takes the temperature out of their log-probs: servers started
    here never have, of others only the mismatch metrics tell."""
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
    slow_share: Fraction | None = None
    """A server whose tokens per second and stream stay below this share of the median of the others for
    slow_seconds gets no new groups; 0.3 is a start. Default: all get them."""
    slow_seconds: PositiveFloat = 60.0
    """How long; as long it is left out, then tried again."""
    hedge_seconds: PositiveFloat | None = None
    """A group with a trajectory that got no token for this long is aborted there and resumes from its
    prefixes on another server, where there is room; well above the time of a publish. Default: only after
    request_timeout_seconds."""
    weight_transport: Literal["disk", "tensor", "distributed"] = "disk"
    """How new weights reach running servers: a folder that they see at the same path; inside the request;
    or a broadcast by torch.distributed (NCCL on GPUs, gloo on CPUs). Servers that join read the folder."""
    extra_arguments: list[str] = []
    """Appended to the server's command line."""


class Algorithm(Section):
    """`asyncrl algorithms` prints every term: formula, what it is for, how it fails. Advantage, importance
    weight, rejections and surrogate may be one's own: "package.module:name" or "./file.py:name"."""

    advantage: AdvantageName = "grpo"
    """Reward -> advantage: grpo, dr_grpo, rloo, remax, reinforce_pp, reinforce_pp_baseline, opo, pass_at_k or
    gae (PPO with a critic, see the section critic)."""
    pass_k: Annotated[int, Field(ge=2)] = 4
    """The k of pass_at_k, at most rollout.samples_per_group."""
    gae_lambda: Fraction = 1.0
    """How far gae looks: 1 to the reward at the end (no bias from the critic), 0 to the next value only."""
    gae_gamma: Fraction = 1.0
    """Discount per token of gae."""
    gae_is_whitened: bool = True
    """Whether gae's advantages are shifted and scaled to mean 0 and std 1 over all tokens of the batch."""
    importance_weight: WeightName = "truncated"
    """Correction of proximal against behavior policy: none, truncated, sequence_truncated, masked,
    sequence_masked."""
    importance_cap: PositiveFloat = 2.0
    """Upper bound C of the truncated weights; sequence_masked drops sequences beyond it."""
    importance_floor: NonNegativeFloat = 0.0
    """Lower bound of the truncated weights: tokens that became unlikely keep that much; 0: none."""
    mask_low: NonNegativeFloat = 0.5
    """Ratio below which masked and token_range leave a token out."""
    mask_high: PositiveFloat = 5.0
    """Ratio above which they do."""
    rejection: list[RejectionName] = []
    """Filters; a token must pass all of them to enter the loss: token_range, geometric_mean, second_moment,
    token_veto."""
    geometric_low: NonNegativeFloat = 0.99
    """Smallest geometric mean ratio of a sequence that geometric_mean keeps."""
    geometric_high: PositiveFloat = 1.01
    """Largest one; staleness needs wider bounds than engines that differ."""
    second_moment_limit: PositiveFloat = 0.04
    """Mean squared log-ratio, over the tokens of an optimizer step that it judges, up to which second_moment
    keeps them."""
    veto_low: PositiveFloat = 1e-4
    """Ratio of a single token below which token_veto leaves its sequence out."""
    surrogate: SurrogateName = "ppo_clip"
    """What a step minimises: reinforce, ppo_clip, gspo, cispo, gmpo."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] | None = 0.2
    """Policy ratio is clipped below at 1 - clip_low; null: nowhere. Default: null for cispo, 0.3297 (ratio
    e^-0.4) for gmpo, else 0.2."""
    clip_high: PositiveFloat = 0.2
    """Policy ratio is clipped above at 1 + clip_high (DAPO raises it to 0.28). Default: 0.4918 (ratio e^0.4)
    for gmpo, else 0.2."""
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Bounds ppo_clip's loss at dual_clip x |advantage| where the advantage is negative; 3 is usual."""
    clip_around: Literal["proximal", "behavior"] = "proximal"
    """Policy that ratios are taken against: the trainer's before the step, or the one that sampled, which
    takes the importance weight's place (importance_weight: none)."""
    reduction: Literal["token_mean", "dr_grpo_constant", "sequence_mean"] = "token_mean"
    """token_mean: over all response tokens; dr_grpo_constant: sum / (sequences x max_new_tokens);
    sequence_mean: over sequences of their token means."""
    kl_coefficient: NonNegativeFloat = 0.0
    """Strength of the KL to the base model; 0 loads no reference model."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_in: Literal["loss", "reward"] = "loss"
    """In the loss per token, or taken from the token's reward, so that earlier tokens answer for it too:
    before the batch is whitened (reinforce_pp, reinforce_pp_baseline, gae) and in the others' rewards (rloo);
    after the baseline of the group, and unscaled, otherwise. In the reward it costs one forward pass of the
    policy more."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Strength of the entropy bonus."""
    overlong_buffer_tokens: Count = 0
    """Reward falls linearly within this many tokens of the limit; 0: off."""
    overlong_penalty: PositiveFloat = 1.0
    """How far the reward has fallen at the limit."""

    def needs_greedy(self) -> bool:
        """Whether each group has one more trajectory, greedy and never trained on."""
        return self.advantage == "remax"

    def needs_critic(self) -> bool:
        """Whether a value model is trained with the policy."""
        return self.advantage == "gae"

    def has_kl_reward(self) -> bool:
        return self.kl_coefficient > 0 and self.kl_in == "reward"

    def is_whitened(self) -> bool:
        """Whether advantages are normalised over the tokens of the batch."""
        return self.gae_is_whitened if self.needs_critic() else self.advantage in WHITENED_ADVANTAGES

    def min_group_size(self) -> int:
        """Fewest graded trajectories of a group that give it advantages."""
        return 1 if self.needs_critic() else 2

    def always_teaches(self) -> bool:
        """Whether a group has a gradient also where its trajectories did equally well."""
        return self.advantage in RAW_ADVANTAGES

    def has_own_loss_terms(self) -> bool:
        """Whether a weight, rejection or surrogate is not built in."""
        return any(":" in name for name in (self.importance_weight, self.surrogate, *self.rejection))

    @model_validator(mode="before")
    @classmethod
    def _fill_in_clip_range(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        low, high = CLIP_RANGES.get(str(raw.get("surrogate")), (0.2, 0.2))
        return {"clip_low": low, "clip_high": high, **raw}

    @model_validator(mode="after")
    def _check_bounds(self) -> "Algorithm":
        for kind, low, high in (
            ("mask", self.mask_low, self.mask_high),
            ("geometric", self.geometric_low, self.geometric_high),
        ):
            if low >= high:
                raise ValueError(
                    f"algorithm.{kind}_low is {low} but algorithm.{kind}_high is {high}: nothing lies "
                    f"between. Lower algorithm.{kind}_low or raise algorithm.{kind}_high."
                )
        if self.clip_around == "behavior" and self.importance_weight != "none":
            raise ValueError(
                f"algorithm.clip_around is behavior and algorithm.importance_weight is "
                f"{self.importance_weight}: the same ratio would count twice. Set "
                f"algorithm.importance_weight to none, or algorithm.clip_around to proximal."
            )
        if self.clip_around == "behavior" and self.surrogate == "reinforce":
            raise ValueError(
                "algorithm.clip_around is behavior but algorithm.surrogate reinforce takes no ratio: nothing "
                "would correct for the policy that sampled. Set algorithm.clip_around to proximal and "
                "algorithm.importance_weight to truncated, or algorithm.surrogate to cispo."
            )
        if self.dual_clip is not None and self.surrogate in SURROGATE_NAMES and self.surrogate != "ppo_clip":
            raise ValueError(
                f"algorithm.dual_clip is {self.dual_clip} but algorithm.surrogate {self.surrogate} has no "
                f"second bound. Take algorithm.dual_clip out, or set algorithm.surrogate to ppo_clip."
            )
        if self.importance_floor >= self.importance_cap:
            raise ValueError(
                f"algorithm.importance_floor is {self.importance_floor} but algorithm.importance_cap is "
                f"{self.importance_cap}: every weight would be the same. Lower algorithm.importance_floor."
            )
        if self.importance_floor and self.importance_weight in ("none", "masked", "sequence_masked"):
            raise ValueError(
                f"algorithm.importance_floor is {self.importance_floor} but algorithm.importance_weight "
                f"{self.importance_weight} has no lower bound. Take algorithm.importance_floor out, or set "
                f"algorithm.importance_weight to truncated or sequence_truncated."
            )
        return self


class Critic(Section):
    """The value model of algorithm.advantage gae, without which nothing here is used. It begins as the base
    model and shares the trainer section's layout, schedule and Adam settings, but for the learning rate. A
    response that is cut off has ended for it: nothing is expected behind the cut."""

    learning_rate: LearningRate = 1e-4
    warmup_steps: Count = 0
    """First steps of the run that train the critic alone, so that the policy never follows a critic that
    knows nothing. Each still makes a version, of the same weights."""
    value_clip: PositiveFloat | None = 0.5
    """PPO value-clip range around the pre-step value; null: no clip."""


class Parallel(Section):
    tensor: Positive = 1
    """Ranks that share every matrix; a divisor of the key-value heads."""
    pipeline: Positive = 1
    """Stages of consecutive layers."""
    virtual_stages: Positive = 1
    """Chunks of layers per stage, interleaved: a shorter pipeline bubble, more messages."""
    context: Positive = 1
    """Ranks that share the tokens of a micro-batch, for long responses."""
    expert: Positive = 1
    """Ranks that share the experts of a layer (Qwen3-MoE)."""
    sequence_parallel: bool = False
    """Tensor ranks also share tokens outside the matrices: less memory for activations."""
    distributed_optimizer: bool = False
    """Data-parallel ranks share the optimizer's state instead of repeating it."""


class Trainer(Section):
    num_steps: Positive = 50
    """Optimizer steps of the whole run."""
    num_processes: Positive = 1
    """Trainer processes; those beyond tensor x pipeline x context are data-parallel."""
    parallel: Parallel = Parallel()
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations computed again in the backward pass to save memory: of attention, or of whole layers."""
    peak_teraflops: PositiveFloat | None = None
    """Of one device at the model's dtype, for model FLOPs utilisation. Default: known GPUs by their name."""
    threads_per_process: Positive = 1
    optimizer_steps_per_batch: Positive = 1
    """Mini-batches that a batch is cut into, each one optimizer step, its groups shuffled by seed and step;
    above 1 the proximal log-probs cost a forward pass. A batch still makes one policy version."""
    tokens_per_micro_batch: Positive = 8192
    """Packed tokens per forward-backward; lower it to save memory."""
    learning_rate: LearningRate = 1e-4
    warmup_steps: Count = 0
    adam_beta1: Fraction = 0.9
    adam_beta2: Fraction = 0.95
    adam_epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    clip_grad_norm: PositiveFloat = 1.0
    checkpoint_every_steps: Positive = 25
    """A crash costs at most the training (not the generation) of this many steps."""
    step_timeout_seconds: PositiveFloat = 3600.0
    """Longest time from a batch to the next take, checkpoint included, before the trainer is called hung and
    restarted from its last checkpoint."""
    keep_checkpoints: Positive = 2
    """How many of the latest checkpoints stay on disk."""
    keep_best: bool = False
    """Also checkpoints each version that is evaluated during training, keeps the one with the best greedy
    held-out accuracy, and exports it with the last one at the end."""

    @model_validator(mode="after")
    def _check_processes(self) -> "Trainer":
        parallel = self.parallel
        grid = parallel.tensor * parallel.pipeline * parallel.context
        if self.num_processes % grid:
            raise ValueError(
                f"trainer.num_processes is {self.num_processes} but tensor x pipeline x context of "
                f"trainer.parallel is {grid}. Set trainer.num_processes to a multiple of {grid}."
            )
        per_stage = self.num_processes // parallel.pipeline
        if per_stage % parallel.expert:
            raise ValueError(
                f"trainer.parallel.expert is {parallel.expert}, which does not divide the {per_stage} "
                f"processes of a pipeline stage. Set it to a divisor of {per_stage}."
            )
        if parallel.virtual_stages > 1 and parallel.pipeline == 1:
            raise ValueError(
                f"trainer.parallel.virtual_stages is {parallel.virtual_stages} but trainer.parallel.pipeline "
                f"is 1: there is no pipeline to interleave. Raise pipeline, or set virtual_stages to 1."
            )
        if parallel.sequence_parallel and parallel.tensor == 1:
            raise ValueError(
                "trainer.parallel.sequence_parallel is true but trainer.parallel.tensor is 1: there is "
                "nothing to share tokens with. Raise tensor, or set sequence_parallel to false."
            )
        return self


class Evaluation(Section):
    every_steps: Count = 10
    """Steps between greedy evaluations during training; 0 evaluates only before and after."""
    num_tasks: Positive = 256
    """At most this many held-out tasks, the first of the file."""
    samples_per_task: Positive = 4
    """For avg@k and pass@k before and after training; during training only greedy answers are taken."""
    temperature: PositiveFloat = 1.0
    """Of the samples for avg@k and pass@k."""
    num_servers: Count = 0
    """Local servers for evaluations alone: they hold the version they evaluate while training publishes on
    to the others. With 0 the rollout servers answer, and an evaluation may span versions."""
    stop_at_accuracy: Fraction | None = None
    """End the run early when a greedy evaluation during training reaches this."""


class Recipe(Section):
    name: str
    """Names the run folder."""
    seed: Count = 0
    """Of data order, initialisation and sampling where the engine allows it."""
    run_folder: str = "runs/{name}"
    """Where the run writes; running again on the same folder resumes. Like every path in a recipe it is
    relative to the recipe's folder; {name} stands for the name."""
    memory_gib: PositiveFloat | None = None
    """What the run may take of this machine's memory, in GiB: a run that is planned to need more is refused.
    Set it where the plan or what is free is wrong. Default: what is free at the start."""
    prepare: Prepare | None = None
    model: Model
    data: Data
    verifying: Verifying = Verifying()
    rollout: Rollout = Rollout()
    replay: Replay = Replay()
    serving: Serving = Serving()
    algorithm: Algorithm = Algorithm()
    critic: Critic = Critic()
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
        capacity, group = self.serving.max_running_requests, self.trajectories_per_group()
        if group > capacity:
            raise ValueError(
                f"rollout.samples_per_group is {self.rollout.samples_per_group}, {group} requests per "
                f"group, but serving.max_running_requests is {capacity}: a group cannot run at once. Raise "
                f"serving.max_running_requests to at least {group}."
            )
        self._check_oversampling()
        self._check_staleness()
        self._check_repetition()
        self._check_algorithm()
        if self.evaluation.stop_at_accuracy is not None and not self.evaluation.every_steps:
            raise ValueError(
                "evaluation.stop_at_accuracy is set but evaluation.every_steps is 0, so nothing is measured "
                "during training. Set evaluation.every_steps to 1 or more."
            )
        if self.trainer.keep_best and not self.evaluation.every_steps:
            raise ValueError(
                "trainer.keep_best is true but evaluation.every_steps is 0, so nothing is evaluated during "
                "training. Set evaluation.every_steps to 1 or more, or trainer.keep_best to false."
            )
        if (self.evaluation.every_steps or self.evaluation.stop_at_accuracy) and self.data.heldout is None:
            raise ValueError(
                "evaluation.every_steps is set but data.heldout is missing. Name a held-out file in "
                "data.heldout, or set evaluation.every_steps to 0."
            )
        return self

    def _check_oversampling(self) -> None:
        rollout = self.rollout
        if rollout.oversampling is None:
            return
        if rollout.interrupt == "drain":
            raise ValueError(
                f"rollout.oversampling is {rollout.oversampling} but rollout.interrupt is drain: what is "
                f"left over would resume with the next version, and drain wants trajectories of one. Take "
                f"one of the two out."
            )
        if rollout.oversampling > 1 and rollout.max_staleness == 0:
            raise ValueError(
                f"rollout.oversampling is {rollout.oversampling} but rollout.max_staleness is 0: what is "
                f"left over could never be trained. Set rollout.max_staleness to 1 or more."
            )
        if self.replay.order == "stalest":
            raise ValueError(
                f"rollout.oversampling is {rollout.oversampling} but replay.order is stalest, which waits "
                f"until all that rollout.max_staleness admits is ready. Take one of the two out."
            )

    def _check_staleness(self) -> None:
        rollout = self.rollout
        for key in ("abort_staleness", "mask_staleness"):
            limit = getattr(rollout, key)
            if limit is not None and limit >= rollout.max_staleness:
                raise ValueError(
                    f"rollout.{key} is {limit} but rollout.max_staleness is {rollout.max_staleness}: nothing "
                    f"is ever that stale. Lower rollout.{key} below rollout.max_staleness, or take it out."
                )
        if rollout.abort_staleness is not None and self.replay.order == "stalest":
            raise ValueError(
                f"rollout.abort_staleness is {rollout.abort_staleness} but replay.order is stalest, which "
                f"asks for the stalest groups. Take one of the two out."
            )

    def _check_repetition(self) -> None:
        replay, rollout = self.replay, self.rollout
        if replay.repeated_groups_per_batch and rollout.max_staleness == 0:
            raise ValueError(
                f"replay.repeated_groups_per_batch is {replay.repeated_groups_per_batch} but "
                f"rollout.max_staleness is 0: nothing may be trained a second time. Set "
                f"rollout.max_staleness to 1 or more."
            )
        most = (replay.max_uses - 1) * rollout.groups_per_batch
        if replay.repeated_groups_per_batch > most:
            raise ValueError(
                f"replay.repeated_groups_per_batch is {replay.repeated_groups_per_batch} but with "
                f"replay.max_uses {replay.max_uses} and rollout.groups_per_batch {rollout.groups_per_batch} "
                f"there are {most} at most. Lower it, or raise replay.max_uses."
            )

    def _check_algorithm(self) -> None:
        algorithm, rollout = self.algorithm, self.rollout
        if algorithm.advantage == "pass_at_k" and algorithm.pass_k > rollout.samples_per_group:
            raise ValueError(
                f"algorithm.pass_k is {algorithm.pass_k} but rollout.samples_per_group is "
                f"{rollout.samples_per_group}: there are no {algorithm.pass_k} answers to take the best of. "
                f"Lower algorithm.pass_k or raise rollout.samples_per_group."
            )
        if rollout.samples_per_group < algorithm.min_group_size():
            raise ValueError(
                f"rollout.samples_per_group is {rollout.samples_per_group} but algorithm.advantage "
                f"{algorithm.advantage} takes a group's other trajectories as baseline. Set "
                f"rollout.samples_per_group to at least 2, or algorithm.advantage to gae."
            )
        if self.replay.drops_no_signal and rollout.samples_per_group == 1:
            raise ValueError(
                "replay.drops_no_signal is true but rollout.samples_per_group is 1: a single trajectory "
                "differs from no other, so every group would be dropped. Set replay.drops_no_signal to false."
            )
        if self.replay.drops_no_signal and algorithm.always_teaches():
            raise ValueError(
                f"replay.drops_no_signal is true but under algorithm.advantage {algorithm.advantage} a group "
                f"teaches also where all its trajectories did equally well. Set replay.drops_no_signal to "
                f"false, or algorithm.advantage to one with a baseline of the group, such as grpo."
            )
        if algorithm.needs_critic() and self.critic.warmup_steps >= self.trainer.num_steps:
            raise ValueError(
                f"critic.warmup_steps is {self.critic.warmup_steps} but trainer.num_steps is "
                f"{self.trainer.num_steps}: the policy would never train. Lower critic.warmup_steps."
            )
        if algorithm.overlong_buffer_tokens >= rollout.max_new_tokens:
            raise ValueError(
                f"algorithm.overlong_buffer_tokens is {algorithm.overlong_buffer_tokens} but "
                f"rollout.max_new_tokens is {rollout.max_new_tokens}: every response would be punished. "
                f"Lower algorithm.overlong_buffer_tokens."
            )
        if self.trainer.optimizer_steps_per_batch > rollout.groups_per_batch:
            raise ValueError(
                f"trainer.optimizer_steps_per_batch is {self.trainer.optimizer_steps_per_batch} but "
                f"rollout.groups_per_batch is {rollout.groups_per_batch}: a step would have less than a "
                f"group. Lower trainer.optimizer_steps_per_batch."
            )

    def groups_per_step(self) -> int:
        """Groups that a step trains on at most, repeated ones included."""
        return self.rollout.groups_per_batch + self.replay.repeated_groups_per_batch

    def trajectories_per_group(self) -> int:
        """Sampled ones, and the greedy one where the advantage needs it."""
        return self.rollout.samples_per_group + self.algorithm.needs_greedy()

    def folder(self) -> Path:
        return Path(self.run_folder.replace("{name}", self.name))
