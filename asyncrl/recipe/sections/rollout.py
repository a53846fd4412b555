"""The sections `rollout`, `replay` and `verifying`."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from asyncrl.recipe.sections.section import (
    CHANGEABLE,
    OBJECT,
    PATH,
    TASK_ROWS,
    Count,
    MinP,
    Nucleus,
    Positive,
    PositiveFloat,
    Section,
    StopString,
    TokenName,
)

MOST_KEPT = 4096
"""SGLang's --sampling-mask-max-tokens: the largest kept set that it says."""


class Rollout(Section):
    """Batch shape, sampling, staleness, and what a weight update does to in-flight trajectories."""

    groups_per_batch: Positive = 16
    """Tasks per batch."""
    samples_per_group: Positive = 8
    """Trajectories per task; they share a baseline. 1 requires algorithm.advantage gae, batch_mean,
    reinforce_pp, w_reinforce or remax."""
    pilot_samples: Annotated[int | None, Field(ge=2)] = None
    """Adaptive groups: trajectories of a group that are generated first. The others follow where the rewards
    of these differ, or where rollout.pilot_min_chance says so; else the group ends with them, without a
    gradient. Saves tokens where many rows are always or never solved, with large groups; a group waits for
    verdicts in between. A length penalty makes the rewards of most pilots differ. Default: whole groups at
    once."""
    pilot_min_chance: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.2
    """Least chance of two rewards in the whole group for which a pilot of equal rewards is extended: by the
    row's record, its verdicts halved every data.selection.half_life_steps, and by how often other rows are
    solved. 0 extends always; 1 only where rewards differ. Fewest tokens without a signal: the share of tokens
    that are in groups with two rewards, times 1 - pilot_samples / samples_per_group."""
    max_staleness: Count = 2
    """Maximum trainer version minus token version of a trained token. 0: synchronous, on-policy."""
    abort_staleness: Count | None = None
    """Drops and replaces groups whose oldest token would be staler than this when trained. Must be below
    max_staleness. Long responses are dropped first; the metric length_bias shows how much. Default: off."""
    mask_staleness: Count | None = None
    """Masks tokens staler than this: out of policy and critic loss, denominators, whitening and KL in the
    reward. Must be below max_staleness. Default: off."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature; behavior log-probs are those of the sampled distribution."""
    top_p: Nucleus = 1.0
    """Samples come from the likeliest tokens whose probabilities sum to this; needs top_k. 1: all tokens.
    The kept tokens are journaled, and the trainer's log-probs are over the same ones (docs/algorithms.md)."""
    top_k: Annotated[int, Field(ge=2, le=MOST_KEPT)] | None = None
    """Samples come from this many of the likeliest tokens. Servers tell up to 4096, which hardly cuts
    anything. Default: all."""
    min_p: MinP = 0.0
    """Samples come from tokens with at least this share of the likeliest token's probability; needs top_k.
    0: all."""
    max_new_tokens: Positive = 64
    """Maximum response length."""
    stop: Annotated[list[StopString], Field(max_length=8)] = []
    """Texts that end a response, in training, evaluation and chat, such as "</answer>" or "\\n\\nQuestion:"
    (in double quotes, or YAML keeps the backslashes). The response ends with the token that completes the
    first of them; its tokens are trained, that one included."""
    stop_tokens: Annotated[list[TokenName], Field(max_length=8)] = []
    """Tokens that end a response besides the model's own end tokens, as the tokenizer names them, such as
    "<|im_end|>"."""
    include_stop: bool = True
    """Whether the text that verifiers read includes the stop string or stop token that ended it. false:
    the text ends before it, for stop strings that would spoil an answer, such as "\\nclass" after code."""
    stream_interval_tokens: Annotated[Positive, CHANGEABLE] = 16
    """Tokens per streamed chunk. Smaller loses less in a crash and after a stop string, larger costs less."""
    interrupt: Annotated[Literal["continue", "retract", "abort", "drain"], CHANGEABLE] = "continue"
    """Effect of a weight update on in-flight trajectories.
    continue: keep generating on the old KV cache; such tokens are tagged.
    retract: recompute the KV cache with the new weights.
    abort: stop, then resume from the prefix on any server.
    drain: finish them first and start no others; one version each, but servers and trainer idle."""
    tokens_per_round: Annotated[Positive | None, CHANGEABLE] = None
    """Maximum tokens per request. A longer trajectory is parked, which frees its slot, and resumes from its
    prefix when there is room (Kimi k1.5). Default: no limit."""
    oversampling: Annotated[Annotated[float, Field(ge=1, allow_inf_nan=False)] | None, CHANGEABLE] = None
    """Partial rollouts (APRIL): groups generated at once, as a multiple of groups_per_batch. Once the
    next batch is ready, stragglers are parked until it is taken, then resume first, with the newest weights.
    Default: generate all that max_staleness admits."""
    max_fault_retries: Annotated[Count, CHANGEABLE] = 2
    """Retries after a verifier fault or a broken stream, before the trajectory is dropped."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_penalty(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and "repetition_penalty" in raw:
            raise ValueError(
                f"rollout.repetition_penalty is {raw['repetition_penalty']!r}, but tokens that are trained "
                f"are sampled without one: it changes probabilities by what was written before, and the "
                f"trainer's log-probs are without it. Remove it; evaluations have "
                f"evaluation.repetition_penalty."
            )
        return raw

    @model_validator(mode="after")
    def _check_truncation(self) -> "Rollout":
        name = "top_p" if self.top_p < 1 else "min_p" if self.min_p > 0 else None
        if name is not None and self.top_k is None:
            raise ValueError(
                f"rollout.{name} is {getattr(self, name)} but rollout.top_k is not set: servers say which "
                f"tokens they kept, and the exact log-probs, only where top_k bounds their number. Set "
                f"rollout.top_k, up to {MOST_KEPT}."
            )
        return self

    def is_truncated(self) -> bool:
        """Whether tokens are sampled from some of all tokens."""
        return self.top_k is not None


class Replay(Section):
    """Which groups make a batch, and how long their tokens are kept."""

    order: Literal["admission", "strict_admission", "freshness", "signal"] = "admission"
    """Which ready groups a batch takes first, after those that max_staleness makes due.
    admission: the oldest.
    strict_admission: the oldest, waiting for stragglers; no length bias, but the trainer waits too.
    freshness: those with the newest tokens.
    signal: those with a gradient, largest variance of correctness first."""
    repeated_groups_per_batch: Count = 0
    """Previously trained groups added to each batch (0: none). rollout.max_staleness applies to them too."""
    max_uses: Annotated[int, Field(ge=2)] = 2
    """Maximum times a repeated group is trained, the first time included."""
    drops_no_signal: bool = False
    """Dynamic sampling: drops and replaces groups whose advantages are all zero by raw correctness; with most
    advantages, those whose trajectories are all equally correct."""
    max_dropped_in_a_row: Positive = 256
    """After this many groups without signal in a row the next one is trained anyway, so no run starves."""
    keep_steps: Annotated[Positive, CHANGEABLE] = 200
    """Steps before the last checkpoint whose tokens stay in the journal, for `asyncrl reproduce` and `view`;
    more if a kept checkpoint needs them. Older steps keep verdicts, versions and lengths."""


class Verifying(Section):
    """How responses are graded."""

    default: Annotated[str, OBJECT, TASK_ROWS] = "math"
    """Verifier for rows that name none: a built-in, "package.module:Name" or "./file.py:Name"."""
    options: Annotated[dict[str, Any], OBJECT, TASK_ROWS] = {}
    """Options of the default verifier."""
    folder: Annotated[str | None, PATH, CHANGEABLE, TASK_ROWS] = None
    """Folder that "./file.py:Name" in a data row is relative to. Default: the recipe's folder."""
    num_workers: Annotated[Positive, CHANGEABLE] = 1
    """Worker processes for symbolic checks and for verifiers of your own. Built-in ones grade plain answers
    without them."""
    timeout_seconds: PositiveFloat = 2.0
    """Wall-clock limit of one verification. Past it the worker is killed. The answer is wrong if it had the
    CPU for half of that time; else the verifier waited, which is a fault."""
    max_faults_in_a_row: Annotated[Positive, CHANGEABLE] = 24
    """Faults without a verdict between them, retries included, after which the run ends with the verifier's
    error, if they span at least 20 seconds. Raise it for a remote verifier with longer outages."""

    def own_files(self) -> Path:
        """Folder that "./file.py:Name" is relative to."""
        return Path(self.folder or ".")
