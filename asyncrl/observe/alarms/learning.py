"""Alarms on what is learned, which may not be what is wanted, or nothing: reward without held-out gain, dead
groups, tokens that the loss leaves out. A run that learns nothing ends."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncrl.errors import AsyncrlError
from asyncrl.observe.alarms.collapse import is_solved
from asyncrl.observe.alarms.history import LOOK_BACK_STEPS, WINDOW_STEPS, Evaluated, History
from asyncrl.observe.alarms.rule import Finding
from asyncrl.system.words import as_percent
from asyncrl.turns.tally import WORDS

STEPS_APART = 10
"""Fewest steps between two evaluations that are compared."""
SOLVED_SHARE = 0.95
"""With more correct responses, groups without signal are all right, and training is done."""
LEFT_OUT = {
    "too_stale_tokens": "were too stale (rollout.mask_staleness)",
    "masked_cut_off_tokens": "are of responses that were cut off (algorithm.masks_cut_off)",
    "nonfinite_tokens": "have no finite log-prob",
    "num_tokens": "were masked or rejected (algorithm.rejection)",
}
"""Column -> why its tokens are not trained, where no token of the step is."""


@dataclass(frozen=True, slots=True)
class RewardWithoutHeldOut:
    """Training responses get better and held-out answers do not: in two evaluations in a row, so that no
    single one decides. The column reward_without_heldout has the same at each step, without that patience."""

    limit: float
    name: str = "reward_without_heldout"
    key: str = "alarms.reward_without_heldout"
    view: str = "groups"

    def check(self, history: History) -> Finding | None:
        found = list(history.evaluations)
        if len(found) < 2 or self._at(found[:-1], history) is None:
            return None
        return self._at(found, history)

    def _at(self, found: list[Evaluated], history: History) -> Finding | None:
        """The last of these evaluations against one STEPS_APART before, and against the first one."""
        earlier = [each for each in found if each.step <= found[-1].step - STEPS_APART]
        if not earlier:
            return None
        # Greedy answers may turn late: over a whole run the reward has to be further ahead.
        return self._pair(earlier[-1], found[-1], self.limit, history) or self._pair(
            earlier[0], found[-1], 2 * self.limit, history
        )

    def _pair(self, then: Evaluated, now: Evaluated, limit: float, history: History) -> Finding | None:
        correct = then.correct if then.correct is not None else history.first("correct_mean")
        if correct is None or now.correct is None:
            return None
        rise, gain = now.correct - correct, now.accuracy - then.accuracy
        ahead = rise - max(0.0, gain)
        # An accuracy near 1 cannot rise with the reward, and within its interval it may have risen.
        has_room = then.accuracy + rise + now.half_width < 1
        if ahead - now.half_width <= limit or not has_room:
            return None
        text = (
            f"training responses are {100 * rise:.0f} points more accurate than at step {then.step}, while "
            f"held-out accuracy went from {as_percent(then.accuracy)} to {as_percent(now.accuracy)}"
        )
        return Finding(ahead, limit, text)


@dataclass(frozen=True, slots=True)
class DeadGroups:
    """Nearly all groups of the batches have no advantage but zero, and that is not because all is solved."""

    limit: float
    groups_per_batch: int
    name: str = "dead_groups"
    key: str = "alarms.dead_group_share"
    view: str = "groups"

    def check(self, history: History) -> Finding | None:
        if is_solved(history, share=SOLVED_SHARE):
            return None
        if (finding := self._while_a_step_waits(history)) is not None:
            return finding
        dropped = history.now("no_signal_token_share")
        if dropped is not None and dropped >= self.limit:
            text = (
                f"dynamic sampling drops {as_percent(dropped)} of the tokens: "
                "their groups are all right or all wrong"
            )
            return Finding(dropped, self.limit, text)
        dead = history.now("groups_zero_signal")
        # No correct response at all is an alarm of its own, which says more.
        if dead is None or not history.now("correct_mean") or dead / self.groups_per_batch < self.limit:
            return None
        text = (
            f"{dead:.1f} of {self.groups_per_batch} groups of a batch have no signal: all right or all wrong"
        )
        return Finding(dead / self.groups_per_batch, self.limit, text)

    def _while_a_step_waits(self, history: History) -> Finding | None:
        """By the groups that were dropped since the last batch: a batch of others would be too few."""
        counts = history.dropped
        if counts is None or not counts["no_signal"]:
            return None
        dead, right = counts["no_signal"], counts["all_right"]
        share = dead / (dead + self.groups_per_batch)
        if share < self.limit or right / dead > SOLVED_SHARE:
            return None
        text = (
            f"dynamic sampling has dropped {dead:,} groups since the last batch and step {counts['step']} "
            f"still waits: {counts['all_wrong']:,} were all wrong, {right:,} all right"
        )
        return Finding(share, self.limit, text)


@dataclass(frozen=True, slots=True)
class IgnorantCritic:
    """The policy leans on values that say less of the returns than their mean would."""

    limit: float
    name: str = "ignorant_critic"
    key: str = "alarms.explained_variance"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        # In a warm-up the policy's rate is 0.
        found = _of_trained_steps(history, "explained_variance")
        if not found or (mean := sum(found) / len(found)) >= self.limit:
            return None
        text = (
            f"over the last {LOOK_BACK_STEPS} steps the critic's mean explained variance is {mean:.2f}: "
            f"the policy's advantages are noisier than without it"
        )
        return Finding(mean, self.limit, text)


@dataclass(frozen=True, slots=True)
class ClippedCritic:
    """The clip shrinks the critic's gradient in most steps: it may never catch up with the policy."""

    limit: float
    clip: float
    name: str = "clipped_critic"
    key: str = "alarms.clipped_critic_share"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        norms = _of_trained_steps(history, "critic_grad_norm")
        share = sum(norm > self.clip for norm in norms) / len(norms) if norms else 0.0
        if share <= self.limit:
            return None
        text = (
            f"in {as_percent(share)} of the last {LOOK_BACK_STEPS} steps the critic's gradient norm is above "
            f"its clip of {self.clip:g}, on average {sum(norms) / len(norms):.3g}"
        )
        return Finding(share, self.limit, text)


def _of_trained_steps(history: History, name: str) -> list[float]:
    """The finite values of the last LOOK_BACK_STEPS steps; none until the policy has trained in each of these
    steps, or where most of them have no value."""
    rows = [numbers for _, numbers in list(history.rows)[-LOOK_BACK_STEPS:]]
    if len(rows) < LOOK_BACK_STEPS or not all(numbers.get("learning_rate") for numbers in rows):
        return []
    found = [value for numbers in rows if math.isfinite(value := numbers.get(name, math.nan))]
    return found if 2 * len(found) > len(rows) else []


@dataclass(frozen=True, slots=True)
class LeftOutTokens:
    """The loss leaves out most tokens, or in a single step all."""

    limit: float
    name: str = "left_out_tokens"
    key: str = "alarms.left_out_share"
    view: str = "curves"

    def check(self, history: History) -> Finding | None:
        if history.last("surviving_tokens") == 0.0:
            numbers = {name: history.last(name) for name in LEFT_OUT}
            text = (
                f"step {history.step} trained no token: {_why_none([numbers], history.text(WORDS))}. "
                f"It took no optimizer step, so version {history.step} has the weights of the version "
                f"before it"
            )
            return Finding(1.0, self.limit, text)
        share = history.now("left_out_share")
        if share is None or share <= self.limit:
            return None
        stale, counted = history.total("too_stale_tokens"), history.total("num_tokens")
        masked = history.total("masked_cut_off_tokens")
        cut_off = f"{masked:.0f} of responses that were cut off, " if masked else ""
        text = (
            f"the loss leaves out {as_percent(share)} of the tokens: "
            f"in the last steps {stale:.0f} were too stale, {cut_off}"
            f"{counted - history.total('surviving_tokens'):.0f} masked or rejected, "
            f"{history.total('surviving_tokens'):.0f} were trained"
        )
        return Finding(share, self.limit, text)


class TrainedNothing(AsyncrlError):
    """No token was trained; the message holds the causes."""


@dataclass
class EmptySteps:
    """Ends a run that trains no token: in WINDOW_STEPS steps in a row of this start, as many as a mean is
    taken over, since one batch may be unlucky; or in none of its steps."""

    num_steps: int
    """Steps of the whole training."""
    has_trained: bool = False
    """In this start or before."""
    _empty: list[Mapping[str, Any]] = field(default_factory=list)
    """The last steps, where none of them trained a token."""

    def restore(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Reads steps of earlier starts. Raises TrainedNothing where they are all, and trained no token."""
        self.has_trained = any(map(_has_trained, rows))
        if rows and self._is_in_vain(rows[-1]):
            raise self._failure(rows)

    def step(self, row: Mapping[str, Any]) -> None:
        """Raises TrainedNothing."""
        if _has_trained(row):
            self.has_trained = True
            self._empty.clear()
            return
        self._empty.append(row)
        if self._is_in_vain(row) or len(self._empty) >= WINDOW_STEPS:
            raise self._failure(self._empty)

    def _is_in_vain(self, last: Mapping[str, Any]) -> bool:
        return last["step"] >= self.num_steps and not self.has_trained

    def _failure(self, rows: Sequence[Mapping[str, Any]]) -> TrainedNothing:
        advice = "run the same command again: the run resumes"
        if self._is_in_vain(rows[-1]):
            advice = "set run_folder to start over, or raise trainer.num_steps to continue"
        first, last = rows[0]["step"], rows[-1]["step"]
        steps = f"step {last}" if first == last else f"steps {first} to {last}"
        why = _why_none(rows, str(rows[-1].get(WORDS, "")))
        return TrainedNothing(f"no token was trained in {steps}: {why}. Remove the cause and {advice}.")


def _has_trained(row: Mapping[str, Any]) -> bool:
    """Steps that train the critic alone count: they lack the column."""
    return row.get("surviving_tokens") != 0.0


def _why_none(rows: Iterable[Mapping[str, Any]], causes: str) -> str:
    """Why no token of these steps was trained."""
    known = list(rows)
    left_out = {words: sum(row.get(column) or 0.0 for row in known) for column, words in LEFT_OUT.items()}
    found = [f"{count:.0f} tokens {words}" for words, count in left_out.items() if count]
    return "; ".join([", ".join(found) or "the responses have no sampled token", *filter(None, [causes])])
