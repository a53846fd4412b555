"""Alarms on numbers that should not be: NaN, faults, engines that disagree, memory that grows, lengths
without accuracy.
"""

import math
from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding
from asyncrl.system.words import as_percent


@dataclass(frozen=True, slots=True)
class OneRowSpike:
    """The gradient norm is far above the usual one and one row carries most of it: clipping has shrunk what
    the batch teaches all other weights."""

    limit: float
    name: str = "gradient_spike"
    key: str = "alarms.spike_row_share"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        share = history.last("spike_share")
        if share is None or not share > self.limit:
            return None
        norm, times = history.last("spike_norm"), history.last("spike_times")
        text = (
            f"the gradient norm of step {history.step} is {norm:.4g}, {times:.0f} times the usual one, and "
            f"{as_percent(share)} of its square is in {history.text('spike_row')}"
        )
        return Finding(share, self.limit, text)


OUTCOMES = ("correct", "wrong", "no_answer", "fault")
FEWEST_FAULTS = 3
"""Fewest faults in the window: a single fault of a small batch may be more than the limit."""


@dataclass(frozen=True, slots=True)
class VerifierFaults:
    """The verifier fails on a share of the responses, whether or not a retry then gives a verdict; the page
    groups them by cause."""

    limit: float
    name: str = "verifier_faults"
    key: str = "alarms.fault_share"
    view: str = "faults"

    def check(self, history: History) -> Finding | None:
        counts = {outcome: history.total(f"outcomes_{outcome}") for outcome in OUTCOMES}
        num_retried = history.total("faults_retried")
        num_asked, num_faults = sum(counts.values()) + num_retried, counts["fault"] + num_retried
        if not num_asked or num_faults < FEWEST_FAULTS or num_faults / num_asked <= self.limit:
            return None
        share = num_faults / num_asked
        text = f"{num_faults:.0f} of the last {num_asked:.0f} verdicts are faults ({as_percent(share, 1)})"
        if num_retried:
            text += f"; a retry of {num_retried:.0f} gave a verdict"
        return Finding(share, self.limit, text)


@dataclass(frozen=True, slots=True)
class NotANumber:
    """A loss or gradient norm that is NaN, or behavior log-probs that are not finite."""

    limit: float
    name: str = "not_a_number"
    key: str = "alarms.nonfinite_share"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        # A critic that warms up leaves the policy as it is: no gradient, no norm, a learning rate of 0; on
        # responses of an earlier run no loss either.
        is_policy_trained = bool(history.last("learning_rate"))
        is_recorded = _is_nan(history.last("grad_norm")) and not is_policy_trained
        if _is_nan(history.last("loss")) and not is_recorded:
            return Finding(math.nan, self.limit, f"the loss of step {history.step} is not a number")
        if _is_nan(history.last("grad_norm")) and is_policy_trained:
            return Finding(math.nan, self.limit, f"the gradient norm of step {history.step} is not a number")
        tokens, lost = history.total("num_tokens"), history.total("nonfinite_tokens")
        if not lost or lost / (tokens + lost) <= self.limit:
            return None
        share = lost / (tokens + lost)
        return Finding(
            share, self.limit, f"{as_percent(share, 2)} of the tokens came with a log-prob that is not finite"
        )


@dataclass(frozen=True, slots=True)
class SkippedSteps:
    """Gradients overflow float16 in one step after the other."""

    limit: float
    name: str = "skipped_steps"
    key: str = "alarms.skipped_steps"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        for model, prefix in (("policy", ""), ("critic", "critic_")):
            skipped = 0
            for _, numbers in reversed(history.rows):
                if not numbers.get(f"{prefix}skipped_steps"):
                    break
                skipped += 1
            if skipped >= self.limit:
                scale = history.last(f"{prefix}loss_scale")
                text = (
                    f"in each of the last {skipped} steps a gradient of the {model} overflowed float16, and "
                    f"an optimizer step was skipped; the loss scale is now {scale:g}"
                )
                return Finding(float(skipped), self.limit, text)
        return None


def _is_nan(value: float | None) -> bool:
    return value is not None and math.isnan(value)


SHARE_OF_FIRST = 0.5
"""Long responses have few effective ones from the first step on: only a fall is news."""


@dataclass(frozen=True, slots=True)
class EffectiveSamples:
    """Effective sample size of the unclipped importance weights, of sequences, or of single tokens, which
    says something of long responses too (VCPO, arXiv 2602.17616: it falls before rewards do)."""

    limit: float
    name: str = "effective_samples"
    key: str = "alarms.effective_share"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        now, first = history.now("sequence_effective_share"), history.first("sequence_effective_share")
        if now is not None and first is not None and now < min(self.limit, SHARE_OF_FIRST * first):
            text = (
                f"the sequences of a step weigh as much as {as_percent(now)} of them would equally, "
                f"{as_percent(first)} in the first steps"
            )
            return Finding(now, self.limit, text)
        of_tokens = history.now("token_effective_share")
        if of_tokens is None or of_tokens >= self.limit:
            return None
        text = f"the tokens of a step weigh as much as {as_percent(of_tokens)} of them would equally"
        return Finding(of_tokens, self.limit, text)


GROWTH = 10.0
"""Growth over the first steps' KL, from a tenth of the limit on."""
SHARE_OF_LIMIT = 0.1
OLDER_CACHE = 2.0
"""Factor on the limit for tokens on an older version's cache: single steps in bfloat16 reach 0.009 nats."""


@dataclass(frozen=True, slots=True)
class MismatchTrend:
    """KL of tokens of the current version: large, or far larger than at first.

    Where steps have no such token that was sampled on the current version's cache, those on an older
    version's cache are taken. Their KL holds what the update changed, too, so that only its size counts.
    """

    limit: float
    name: str = "mismatch_kl"
    key: str = "alarms.mismatch_kl"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        now, first = history.now("mismatch_kl"), history.first("mismatch_kl")
        if now is None:
            continued = history.now("continued_kl")
            limit = OLDER_CACHE * self.limit
            if continued is None or continued <= limit:
                return None
            text = f"the KL between trainer and servers is {continued:.1e} nats per token, on an older cache"
            return Finding(continued, limit, text)
        has_grown = first is not None and now > max(SHARE_OF_LIMIT * self.limit, GROWTH * first)
        if now <= self.limit and not has_grown:
            return None
        before = "" if first is None else f", {first:.1e} in the first steps"
        text = f"the KL between trainer and servers is {now:.1e} nats per token{before}"
        return Finding(now, self.limit, text)


@dataclass(frozen=True, slots=True)
class LargeShare:
    """A share of the tokens that is above its limit."""

    limit: float
    column: str
    words: str
    name: str
    key: str
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        now = history.now(self.column)
        if now is None or now <= self.limit:
            return None
        return Finding(now, self.limit, f"{as_percent(now, 1)} of the tokens {self.words}")


def capped_share(limit: float) -> LargeShare:
    words = "have an importance weight at algorithm.importance_weight.cap"
    return LargeShare(limit, "capped_share", words, "capped_share", "alarms.capped_share")


def clipped_share(limit: float) -> LargeShare:
    words = "have no gradient, since the surrogate clips them"
    return LargeShare(limit, "clipped_share", words, "clipped_share", "alarms.clipped_share")


def trust_region_share(limit: float) -> LargeShare:
    words = "have no policy loss, since they are outside algorithm.trust_region"
    return LargeShare(limit, "trust_region_share", words, "trust_region_share", "alarms.trust_region_share")


LEAST_GROWTH_GIB = 0.5
"""Below this, growth is caches and arenas of small processes."""
PARTS = {
    "controller_memory_gib": "the controller",
    "trainer_memory_gib": "the largest trainer rank",
    "server_memory_gib": "the largest rollout server",
}


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """A process holds far more than when it had settled."""

    limit: float
    name: str = "memory_growth"
    key: str = "alarms.memory_growth"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        for column, part in PARTS.items():
            # Processes are measured every few seconds, in which a small model makes many steps.
            now, settled = history.latest(column), history.settled(column)
            if now is None or not settled or now - settled < LEAST_GROWTH_GIB:
                continue
            if now > self.limit * settled:
                text = f"the memory of {part} grew from {settled:.1f} to {now:.1f} GiB"
                return Finding(now / settled, self.limit, text)
        return None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Processes wait for memory, or are about to: the run is slow long before anything is killed."""

    limit_share: float | None
    stall_share: float | None
    name: str = "memory_limit"
    key: str = "alarms.memory_limit_share, alarms.memory_stall_share"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        used, stalled = history.now("memory_limit_share"), history.now("memory_stall_share")
        if self.stall_share is not None and stalled is not None and stalled > self.stall_share:
            text = (
                f"processes waited for memory in {as_percent(stalled)} of the time: the run is near the "
                f"limit of its control group (container, Slurm), and slow"
            )
            return Finding(stalled, self.stall_share, text)
        if self.limit_share is None or used is None or used <= self.limit_share:
            return None
        text = (
            f"{as_percent(used)} of the memory that the control group (container, Slurm) allows is in use: "
            f"processes will wait for memory, then be killed"
        )
        return Finding(used, self.limit_share, text)


TIMES = 10.0
"""Some models begin with unsure ends: only a rise is news."""


@dataclass(frozen=True, slots=True)
class RunOn:
    """The end token, certain before, becomes less likely where responses end. Each version moves it further
    the same way, until what responses learn from shows it (docs/algorithms.md)."""

    limit: float
    name: str = "run_on"
    key: str = "alarms.run_on_p95"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        now = history.now("run_on_p95")
        known = [
            value
            for value in (history.first("run_on_p95"), history.before("run_on_p95"))
            if value is not None
        ]
        if now is None or not known or now <= max(self.limit, TIMES * min(known)):
            return None
        text = (
            f"one of twenty responses that ended would have gone on with a probability of {now:.2g} or more, "
            f"{min(known):.2g} before"
        )
        return Finding(now, self.limit, text)


CORRECT_RISE = 0.02
"""Rise from which longer or shorter responses have paid."""
CUT_RISE = 0.2


@dataclass(frozen=True, slots=True)
class LengthExplosion:
    """Longer and longer, or more and more of them cut at the limit."""

    growth: float | None
    cut_share: float | None
    name: str = "length_explosion"
    key: str = "alarms.length_growth, alarms.cut_share"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        steps = history.steps_back()
        cut, cut_before = history.now("cut_share"), history.before("cut_share")
        if self.cut_share is not None and cut is not None and cut_before is not None:
            if cut > self.cut_share and cut > cut_before + CUT_RISE and not has_paid(history):
                text = (
                    f"{as_percent(cut)} of the responses are cut, {as_percent(cut_before)} were {steps} "
                    f"steps before"
                )
                return Finding(cut, self.cut_share, text)
        now, before = history.now("response_tokens_mean"), history.before("response_tokens_mean")
        if self.growth is None or now is None or not before:
            return None
        if now < self.growth * before or has_paid(history):
            return None
        return Finding(now / before, self.growth, _words("grew", before, now, steps))


@dataclass(frozen=True, slots=True)
class LengthCollapse:
    """Shorter and shorter: the reasoning is gone."""

    limit: float
    name: str = "length_collapse"
    key: str = "alarms.length_shrink"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        now, before = history.now("response_tokens_mean"), history.before("response_tokens_mean")
        if now is None or not before or now > self.limit * before or has_paid(history):
            return None
        return Finding(now / before, self.limit, _words("shrank", before, now, history.steps_back()))


def has_paid(history: History) -> bool:
    """Whether more responses are correct than before; also where that is not known."""
    rise = history.rise("correct_mean")
    return rise is None or rise >= CORRECT_RISE


def _words(verb: str, before: float, now: float, steps: int) -> str:
    return (
        f"responses {verb} from {before:.0f} to {now:.0f} tokens in {steps} steps, without more correct ones"
    )
