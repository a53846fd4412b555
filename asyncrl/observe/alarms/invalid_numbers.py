"""Numbers that should not be: verifier faults, NaN, gradients that overflow."""

import math
from dataclasses import dataclass

from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.rule import Finding
from asyncrl.system.rounding import as_percent


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
