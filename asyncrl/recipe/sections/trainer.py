"""The sections `trainer`, with its subsection `trainer.parallel`, and `critic`."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from asyncrl.recipe.sections.section import (
    CHANGEABLE,
    LAYOUT,
    PATH,
    PATH_OR_HUB_ID,
    PER_STEP,
    Count,
    Fraction,
    LearningRate,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
)
from asyncrl.recipe.terms import OneOf, Term


class Router(Section):
    """Routers of a mixture of experts. No loss pushes them towards balance: which experts get a token is the
    policy's own choice."""

    frozen: bool = False
    """Routers keep the base model's weights, as many fine-tunes of mixtures of experts have it: what a token
    is routed by then changes through the layers before it alone. The critic's routers are trained."""
    bias_update_rate: NonNegativeFloat = 0.0
    """For routers of sigmoids with a bias per expert (GLM-4.5): after each optimizer step the biases of
    experts with less than the mean load rise by this, those of others fall by it. 0: biases stay the base
    model's, as in most fine-tunes: a policy that learns from few kinds of tasks needs few experts.
    DeepSeek-V3 was pretrained with 0.001."""


SMALLEST_LOSS_SCALE = 2.0**-10
"""A gradient that overflows even so has no finite value."""


class Parallel(Section):
    """How the model is divided over trainer processes."""

    tensor: Positive = 1
    """Ranks that share every matrix. Must divide the number of key-value heads."""
    pipeline: Positive = 1
    """Pipeline stages of consecutive layers."""
    virtual_stages: Positive = 1
    """Interleaved chunks of layers per stage: a smaller pipeline bubble, more messages."""
    context: Positive = 1
    """Ranks that share the tokens of a micro-batch, for long responses."""
    expert: Positive = 1
    """Ranks that share the experts of a layer, in mixtures of experts."""
    sequence_parallel: bool = False
    """Tensor ranks also share tokens outside the matrices: less activation memory."""
    distributed_optimizer: bool | None = None
    """Data-parallel ranks shard the optimizer state instead of replicating it. Default: true on a GPU with
    optimizer adam, else false."""
    overlap_grad_reduce: bool | None = None
    """Data-parallel ranks sum gradients during the backward pass. Default: true on a GPU where several
    data-parallel ranks share a distributed optimizer."""
    overlap_param_gather: bool | None = None
    """Data-parallel ranks gather weights during the next forward pass, between the optimizer steps of a batch
    and in the critic; a version is gathered whole before it is published. Needs distributed_optimizer and
    overlap_grad_reduce. Default: as overlap_grad_reduce."""
    ddp_bucket_size: Positive | None = None
    """Parameters per message where one of the two overlaps. Default: 40 million, or 1 million per
    data-parallel rank where that is more."""


class Constant(Term):
    name: Literal["constant"]


class Fall(Term):
    steps: Positive | None = None
    """Length of the schedule, warm-up included. Default: the whole run."""
    min_share: Fraction = 0.0
    """Floor, as a share of learning_rate; for the critic, of its own."""


class WholeFall(Fall):
    name: Literal["linear", "cosine"]


class LateFall(Fall):
    name: Literal["wsd"]
    decay_steps: Positive | None = None
    """Length of the fall, whose end is that of `steps`. Default: a tenth of it."""


class Adam(Term):
    name: Literal["adam"]


class Muon(Term):
    name: Literal["muon"]
    learning_rate: Annotated[LearningRate | None, PER_STEP] = None
    """Muon learning rate of the policy's matrices after warm-up. It follows the schedule of
    trainer.learning_rate; the critic's matrices keep its ratio to that. An update is as large as Adam's.
    Default: trainer.learning_rate."""
    momentum: Fraction = 0.95
    """Decay of Muon's momentum (Nesterov). The default is prime-rl's and torch's."""


class Trainer(Section):
    """Steps, layout, optimizer and checkpoints."""

    num_steps: Annotated[Positive, CHANGEABLE] = 50
    """Batches trained in the whole run; each makes one policy version."""
    num_processes: Annotated[Positive, CHANGEABLE, LAYOUT] = 1
    """Trainer processes; those beyond tensor x pipeline x context are data-parallel."""
    parallel: Annotated[Parallel, CHANGEABLE, LAYOUT] = Parallel()
    router: Router = Router()
    recompute: Annotated[Literal["none", "selective", "full"], CHANGEABLE] = "none"
    """Activation recomputation in the backward pass, to save memory.
    none: keep all activations.
    selective: recompute norms and feed-forward parts: most of what is kept, a fifth more computing.
    full: recompute whole layers."""
    attention: Annotated[
        Literal["auto", "flash_attn_4", "flash_attn", "transformer_engine", "torch_varlen", "sdpa"],
        CHANGEABLE,
        LAYOUT,
    ] = "auto"
    """The kernel of causal attention over packed sequences. Each is tried at the start, forward and backward,
    against the formula; torch's math kernel is never used on a GPU.
    auto: on a GPU the first of the following that is installed and works, on a CPU sdpa.
    flash_attn_4: the package flash-attn-4; 16-bit models, compute capability 9.0.
    flash_attn: the package flash-attn; 16-bit models.
    transformer_engine: cuDNN or FlashAttention, by its own choice; 16-bit models.
    torch_varlen: the FlashAttention that torch is built with; 16-bit models.
    sdpa: a fused kernel of torch per length; sequences of similar lengths are padded to one."""
    deterministic: Annotated[bool, CHANGEABLE, LAYOUT] = False
    """Makes steps on a GPU the same to the last digit when they are repeated (`asyncrl reproduce`), by slower
    algorithms of torch, cuBLAS, NCCL and Transformer Engine. On a CPU they are anyway."""
    peak_teraflops: PositiveFloat | None = None
    """Peak of one device at the model's dtype, for the metric MFU. Default: by the GPU's name, if known."""
    threads_per_process: Annotated[Positive, CHANGEABLE, LAYOUT] = 1
    """CPU threads per trainer process."""
    optimizer_steps_per_batch: Positive = 1
    """Mini-batches per batch, one optimizer step each. Above 1, proximal log-probs cost one more forward
    pass."""
    splits_staleness: Annotated[bool, CHANGEABLE] = False
    """Measures the mismatch of the engines and staleness apart on stale tokens too, in columns of their own,
    by the trainer's log-probs under the version that sampled each token; training is the same. For runs whose
    tokens are nearly all stale, so that few tell the mismatch. Costs one forward pass of the sequences with
    tokens of each older version, a second model, and rollout.max_staleness copies of the weights in host
    memory. A resumed run knows the versions from its start on."""
    tokens_per_micro_batch: Annotated[Positive, CHANGEABLE, LAYOUT] = 8192
    """Packed tokens per forward-backward pass. Lower it to save memory."""
    mini_batch_order: Literal["groups", "responses", "batch"] = "groups"
    """Order in which the responses of a batch fill its mini-batches, where it has several.
    groups: groups in an order drawn by seed and step; the responses to a prompt stay neighbors.
    responses: single responses in such an order, so that a mini-batch has parts of many groups (oat).
    batch: in the order of the batch, the order in which it was taken (verl)."""
    optimizer: Annotated[Adam | Muon, OneOf("adam")] = Adam(name="adam")
    """adam: AdamW.
    muon: orthogonal momentum for the matrices inside the layers, AdamW for embeddings, output layer, norms
    and biases; the critic's too. 4 bytes less of state per parameter of a matrix; a step costs more. The
    field saw small gains over adam in RL: for models that were pretrained with it. Needs
    trainer.parallel.tensor and expert of 1, and no distributed_optimizer."""
    learning_rate: Annotated[LearningRate, PER_STEP] = 1e-6
    """Adam learning rate after warm-up, the highest of the schedule. The default is that of most published
    runs, of models from 1 B parameters on; smaller models need more, those below 1 M 1e-4. Where the recipe
    states none, adapters (model.lora) have ten times the default or the preset's. A change on resume holds
    from the first step after the checkpoint."""
    learning_rate_schedule: Annotated[Constant | WholeFall | LateFall, OneOf("constant"), PER_STEP] = (
        Constant(name="constant")
    )
    """Learning rate after warm-up. Falling ones reach min_share of it after `steps`.
    constant: stays, as in most published runs.
    linear: falls on a line.
    cosine: falls on half a cosine.
    wsd: stays, then falls on a line over the last decay_steps."""
    warmup_steps: Annotated[Count, PER_STEP] = 0
    """Steps over which the learning rate rises linearly: step n trains at n / warmup_steps of it."""
    schedule_unit: Literal["batches", "optimizer_steps"] = "batches"
    """Steps that warmup_steps, critic.warmup_steps and the steps of learning_rate_schedule count.
    batches: steps of the run, one per batch (verl).
    optimizer_steps: mini-batches, the critic its own (DeepSpeed, and so OpenRLHF and Open-Reasoner-Zero)."""
    learning_rate_scaling: Literal["none", "ess"] = "none"
    """Factor on the policy's learning rate, by each optimizer step's own data.
    none: 1.
    ess: square root of the effective sample size of its sequences' unclipped importance weights, as a share
    of their number (VCPO). For staleness of 4 and more, or weights far apart: a step that few sequences carry
    is a small one. Responses of thousands of tokens have few effective sequences always: raise
    learning_rate."""
    adam_beta1: Fraction = 0.9
    """Decay of the first moment."""
    adam_beta2: Fraction = 0.95
    """Decay of the second moment."""
    adam_epsilon: PositiveFloat = 1e-8
    """Added to the denominator of Adam's update: numbers whose gradient is well below it hardly move. Adam
    moves all others by up to the learning rate, however small their gradient is. A gradient's usual number is
    grad_norm over the square root of the parameters; raise epsilon to 0.2% of it for models below a billion
    of them (1e-6 for half a million), or where the alarm run_on began. In docs/algorithms.md."""
    exp_avg_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of Adam's first moment. bfloat16 saves 2 bytes per parameter of a rank's share; on a GPU with
    Transformer Engine, a distributed optimizer and a bfloat16 model."""
    exp_avg_sq_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of Adam's second moment, under the conditions of exp_avg_dtype. bfloat16 keeps 8 bits: with
    adam_beta2 above 0.99 small updates get lost."""
    optimizer_cpu_offload: bool = False
    """Keeps Adam's states and float32 weights in host memory and steps there: 12 bytes less per parameter of
    a rank's share on the GPU, 16 more on the host, and slower steps. Needs what exp_avg_dtype needs."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay (AdamW)."""
    clip_grad_norm: PositiveFloat = 1.0
    """Maximum global gradient norm."""
    initial_loss_scale: Annotated[float, Field(ge=SMALLEST_LOSS_SCALE, le=2.0**24)] | None = None
    """Factor on the loss of a float16 model in the first backward passes; policy and critic have one each. A
    step whose gradient overflows is skipped, like one without a surviving token, and halves the scale. The
    loss is a sum over tokens until its gradient is divided, so that scales of means are larger by the number
    of tokens. A power of two rounds nothing. Default: 16,384 over tokens_per_micro_batch, rounded down to
    one. Lower it if first steps are skipped."""
    loss_scale_growth_steps: Positive = 1000
    """Optimizer steps in a row without overflow that double the loss scale. The scale that a run settles at
    is tried too large once in as many steps, which costs that step."""
    checkpoint_every_steps: Annotated[Positive, CHANGEABLE] = 25
    """Steps between checkpoints. A crash costs at most this many steps of training, and no generation."""
    step_timeout_seconds: Annotated[PositiveFloat, CHANGEABLE] = 3600.0
    """Longest time from a batch to the next take, checkpoint included, before the trainer counts as hung and
    is restarted from its last checkpoint."""
    rank_timeout_seconds: Annotated[PositiveFloat, CHANGEABLE] = 1800.0
    """Longest wait of a trainer process for another one, which then counts as dead; all restart from the last
    checkpoint. A process that dies without its machine is noticed at once. Set it above the time of the
    slowest micro-batch and of writing a process's part of a checkpoint. Waits for batches may be longer."""
    saves_in_background: Annotated[bool, CHANGEABLE] = True
    """Training continues while a checkpoint is written from a copy of the state in host memory. false:
    training waits for the write, which saves the copy: as much memory as weights and optimizer states,
    divided among data-parallel processes and kept between checkpoints."""
    stop_timeout_seconds: Annotated[PositiveFloat, CHANGEABLE] = 4.0
    """After Ctrl-C or SIGTERM: how long the current step and its checkpoint may take. After that the
    trainer is killed, and the next start repeats the steps since the last checkpoint. Raise it for large
    models. Streams, verdicts and evaluations get at least 2 s of it. Then servers and journal get 10 s and
    the report 10 s; a part that takes longer ends the process at once."""
    keep_checkpoints: Annotated[Positive, CHANGEABLE] = 2
    """Newest checkpoints kept on disk."""
    keep_best: Annotated[bool, CHANGEABLE] = False
    """Also saves each version evaluated during training, keeps the one with the best greedy held-out
    accuracy, and exports it at the end together with the last one."""

    def first_loss_scale(self) -> float:
        """initial_loss_scale, or its default: a weight's gradient in float16 is a sum over a micro-batch."""
        if self.initial_loss_scale is not None:
            return self.initial_loss_scale
        return max(SMALLEST_LOSS_SCALE, 2.0 ** math.floor(math.log2(2**14 / self.tokens_per_micro_batch)))

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
        self._check_muon()
        return self

    def _check_muon(self) -> None:
        """Refuses keys that Muon does not work with."""
        if not isinstance(self.optimizer, Muon):
            return
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        parallel = self.parallel
        whole = "Muon steps on whole matrices"
        for key, value, wanted, reason in (
            ("parallel.tensor", parallel.tensor, 1, f"its ranks share every matrix, and {whole}"),
            ("parallel.expert", parallel.expert, 1, "experts that are dealt have gradient sums of their own"),
            (
                "parallel.distributed_optimizer",
                bool(parallel.distributed_optimizer),
                False,
                f"its ranks hold ranges of the parameters, and {whole}",
            ),
            *(
                (key, getattr(self, key), defaults[key], "only a distributed optimizer has that")
                for key in ("exp_avg_dtype", "exp_avg_sq_dtype", "optimizer_cpu_offload")
            ),
        ):
            if value != wanted:
                raise ValueError(
                    f"trainer.{key} is {str(value).lower()} but trainer.optimizer is muon: {reason}. Set "
                    f"trainer.{key} to {str(wanted).lower()}, or trainer.optimizer to adam."
                )


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
