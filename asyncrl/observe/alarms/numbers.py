"""Rules on numbers that should not be: NaN, faults, engines that disagree, memory that grows.

Each rule has the name of its alarm. It gets the history and the limits of the recipe.
"""

import math
from collections.abc import Callable

from asyncrl.observe.alarms.rule import LOOK_BACK_STEPS, Finding, History
from asyncrl.system.words import as_percent


def gradient_spike(history: History, limit: float) -> Finding | None:
    """The gradient norm is far above the usual one and one row carries most of it: clipping has shrunk what
    the batch teaches all other weights."""
    share = history.last("spike_share")
    if share is None or not share > limit:
        return None
    norm, times = history.last("spike_norm"), history.last("spike_times")
    text = (
        f"the gradient norm of step {history.step} is {norm:.4g}, {times:.0f} times the usual one, and "
        f"{as_percent(share)} of its square is in {history.text('spike_row')}"
    )
    return Finding(share, limit, text)


OUTCOMES = ("correct", "wrong", "no_answer", "fault")
FEWEST_FAULTS = 3
"""Fewest faults in the window: a single fault of a small batch may be more than the limit."""


def verifier_faults(history: History, limit: float) -> Finding | None:
    """The verifier fails on a share of the responses, whether or not a retry then gives a verdict; the page
    groups them by cause."""
    counts = {outcome: history.total(f"outcomes_{outcome}") for outcome in OUTCOMES}
    num_retried = history.total("faults_retried")
    num_asked, num_faults = sum(counts.values()) + num_retried, counts["fault"] + num_retried
    if not num_asked or num_faults < FEWEST_FAULTS or num_faults / num_asked <= limit:
        return None
    share = num_faults / num_asked
    text = f"{num_faults:.0f} of the last {num_asked:.0f} verdicts are faults ({as_percent(share, 1)})"
    if num_retried:
        text += f"; a retry of {num_retried:.0f} gave a verdict"
    return Finding(share, limit, text)


def not_a_number(history: History, limit: float) -> Finding | None:
    """A loss or gradient norm that is NaN, or behavior log-probs that are not finite."""
    # A critic that warms up leaves the policy as it is: no gradient, no norm, a learning rate of 0; on
    # responses of an earlier run no loss either.
    is_policy_trained = bool(history.last("learning_rate"))
    is_norm_nan = _is_nan(history.last("grad_norm"))
    if _is_nan(history.last("loss")) and (is_policy_trained or not is_norm_nan):
        return Finding(math.nan, limit, f"the loss of step {history.step} is not a number")
    if is_norm_nan and is_policy_trained:
        return Finding(math.nan, limit, f"the gradient norm of step {history.step} is not a number")
    tokens, lost = history.total("num_tokens"), history.total("nonfinite_tokens")
    if not lost or lost / (tokens + lost) <= limit:
        return None
    share = lost / (tokens + lost)
    text = f"{as_percent(share, 2)} of the tokens came with a log-prob that is not finite"
    return Finding(share, limit, text)


def _is_nan(value: float | None) -> bool:
    """Whether it was measured and is no number."""
    return value is not None and math.isnan(value)


def skipped_steps(history: History, limit: float) -> Finding | None:
    """Gradients overflow float16 in one step after the other."""
    for model, prefix in (("policy", ""), ("critic", "critic_")):
        skipped = 0
        for _, numbers in reversed(history.rows):
            if not numbers.get(f"{prefix}skipped_steps"):
                break
            skipped += 1
        if skipped >= limit:
            text = (
                f"in each of the last {skipped} steps a gradient of the {model} overflowed float16, and an "
                f"optimizer step was skipped; the loss scale is now {history.last(f'{prefix}loss_scale'):g}"
            )
            return Finding(float(skipped), limit, text)
    return None


SHARE_OF_FIRST = 0.5
"""Long responses have few effective ones from the first step on: only a fall is news."""


def effective_samples(history: History, limit: float) -> Finding | None:
    """Effective sample size of the unclipped importance weights, of sequences, or of single tokens, which
    says something of long responses too (VCPO, arXiv 2602.17616: it falls before rewards do)."""
    now, first = history.now("sequence_effective_share"), history.first("sequence_effective_share")
    if now is not None and first is not None and now < min(limit, SHARE_OF_FIRST * first):
        text = (
            f"the sequences of a step weigh as much as {as_percent(now)} of them would equally, "
            f"{as_percent(first)} in the first steps"
        )
        return Finding(now, limit, text)
    of_tokens = history.now("token_effective_share")
    if of_tokens is None or of_tokens >= limit:
        return None
    text = f"the tokens of a step weigh as much as {as_percent(of_tokens)} of them would equally"
    return Finding(of_tokens, limit, text)


GROWTH = 10.0
"""Growth over the first steps' KL, from a tenth of the limit on."""
SHARE_OF_LIMIT = 0.1
OLDER_CACHE = 2.0
"""Factor on the limit for tokens on an older version's cache: single steps in bfloat16 reach 0.009 nats."""


def mismatch_kl(history: History, limit: float) -> Finding | None:
    """KL of tokens of the current version: large, or far larger than at first.

    Where steps have no such token that was sampled on the current version's cache, those on an older
    version's cache are taken. Their KL holds what the update changed, too, so that only its size counts.
    """
    now, first = history.now("mismatch_kl"), history.first("mismatch_kl")
    if now is None:
        continued, limit = history.now("continued_kl"), OLDER_CACHE * limit
        if continued is None or continued <= limit:
            return None
        text = f"the KL between trainer and servers is {continued:.1e} nats per token, on an older cache"
        return Finding(continued, limit, text)
    has_grown = first is not None and now > max(SHARE_OF_LIMIT * limit, GROWTH * first)
    if now <= limit and not has_grown:
        return None
    before = "" if first is None else f", {first:.1e} in the first steps"
    return Finding(now, limit, f"the KL between trainer and servers is {now:.1e} nats per token{before}")


def large_share(column: str, words: str) -> Callable[[History, float], Finding | None]:
    """A rule: the share of the tokens in `column` is above its limit. `words` say what these tokens are."""

    def find(history: History, limit: float) -> Finding | None:
        now = history.now(column)
        if now is None or now <= limit:
            return None
        return Finding(now, limit, f"{as_percent(now, 1)} of the tokens {words}")

    return find


LEAST_GROWTH_GIB = 0.5
"""Below this, growth is caches and arenas of small processes."""
PARTS = {
    "controller_memory_gib": "the controller",
    "trainer_memory_gib": "the largest trainer rank",
    "server_memory_gib": "the largest rollout server",
}


def memory_growth(history: History, limit: float) -> Finding | None:
    """A process holds far more than when it had settled."""
    for column, part in PARTS.items():
        # Processes are measured every few seconds, in which a small model makes many steps.
        now, settled = history.latest(column), history.settled(column)
        if now is None or not settled or now - settled < LEAST_GROWTH_GIB:
            continue
        if now > limit * settled:
            text = f"the memory of {part} grew from {settled:.1f} to {now:.1f} GiB"
            return Finding(now / settled, limit, text)
    return None


def memory_limit(history: History, limit_share: float | None, stall_share: float | None) -> Finding | None:
    """Processes wait for memory, or are about to: the run is slow long before anything is killed."""
    used, stalled = history.now("memory_limit_share"), history.now("memory_stall_share")
    if stall_share is not None and stalled is not None and stalled > stall_share:
        text = (
            f"processes waited for memory in {as_percent(stalled)} of the time: the run is near the "
            f"limit of its control group (container, Slurm), and slow"
        )
        return Finding(stalled, stall_share, text)
    if limit_share is None or used is None or used <= limit_share:
        return None
    text = (
        f"{as_percent(used)} of the memory that the control group (container, Slurm) allows is in use: "
        f"processes will wait for memory, then be killed"
    )
    return Finding(used, limit_share, text)


ROUTER_RISE = 1.5
"""With few experts, one gets many tokens anyway: only a rise is news."""


def router_collapse(history: History, limit: float) -> Finding | None:
    """One expert of a layer gets most tokens, whatever they are."""
    now, first = history.now("busiest_expert_share"), history.first("busiest_expert_share")
    if now is None or first is None or now <= max(limit, ROUTER_RISE * first):
        return None
    text = (
        f"one expert of a layer gets {as_percent(now)} of the tokens, up from {as_percent(first)} in the "
        f"first steps"
    )
    return Finding(now, limit, text)


def ignorant_critic(history: History, limit: float) -> Finding | None:
    """The policy leans on values that say less of the returns than their mean would."""
    # In a warm-up the policy's rate is 0.
    found = history.of_trained_steps("explained_variance")
    if not found or (mean := sum(found) / len(found)) >= limit:
        return None
    text = (
        f"over the last {LOOK_BACK_STEPS} steps the critic's mean explained variance is {mean:.2f}: "
        f"the policy's advantages are noisier than without it"
    )
    return Finding(mean, limit, text)


def clipped_critic(history: History, limit: float, *, clip: float) -> Finding | None:
    """The clip shrinks the critic's gradient in most steps: it may never catch up with the policy."""
    norms = history.of_trained_steps("critic_grad_norm")
    share = sum(norm > clip for norm in norms) / len(norms) if norms else 0.0
    if share <= limit:
        return None
    text = (
        f"in {as_percent(share)} of the last {LOOK_BACK_STEPS} steps the critic's gradient norm is above "
        f"its clip of {clip:g}, on average {sum(norms) / len(norms):.3g}"
    )
    return Finding(share, limit, text)
