"""Rules on what is learned, which may not be what is wanted, or nothing: reward without held-out gain, dead
groups, a policy that has become too sure, lengths without accuracy, tokens that the loss leaves out.

Each rule has the name of its alarm. It gets the history and the limits of the recipe. `EmptySteps` ends a
run that learns nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncrl.errors import AsyncrlError
from asyncrl.observe.alarms.rule import WINDOW_STEPS, Evaluated, Finding, History
from asyncrl.system.words import as_percent
from asyncrl.turns.tally import WORDS

MOSTLY_CORRECT = 0.9
"""With more correct responses the policy may be sure: a task that is solved has one right answer."""
SOLVED_SHARE = 0.95
"""With more correct responses, groups without signal are all right, and training is done."""
ENTROPY_SHARE = 0.2
"""Share of the first steps' entropy: some models begin with little."""
ANSWER_RISE = 0.2
"""Rise over the first steps' share: a task with few possible answers begins with a large one."""


def is_solved(history: History, *, share: float = MOSTLY_CORRECT) -> bool:
    """Whether more than `share` of the training responses, or of the held-out answers, are correct."""
    correct = history.now("correct_mean")
    if history.evaluations and history.evaluations[-1].accuracy > share:
        return True
    return correct is not None and correct > share


def entropy_collapse(history: History, limit: float) -> Finding | None:
    """Entropy near zero before the tasks are solved (Cui et al. 2025, arxiv.org/abs/2505.22617)."""
    now, first = history.now("entropy"), history.first("entropy")
    if now is None or first is None or is_solved(history) or now >= min(limit, ENTROPY_SHARE * first):
        return None
    return Finding(now, limit, f"entropy fell from {first:.3g} nats in the first steps to {now:.2g} nats")


def one_answer(history: History, limit: float) -> Finding | None:
    """Most responses give the same answer, whatever is asked (`verifiers.monitor`)."""
    now, first = history.now("most_common_answer_share"), history.first("most_common_answer_share")
    if now is None or first is None or is_solved(history) or now <= limit or now < first + ANSWER_RISE:
        return None
    text = (
        f"{as_percent(now)} of the responses give one answer, up from {as_percent(first)} in the first steps"
    )
    return Finding(now, limit, text)


def likelihood_displacement(history: History, limit: float) -> Finding | None:
    """Chosen responses are less likely than under the reference, and rejected ones even less: pairs are told
    apart while probability goes to responses that neither side has (Razin et al. 2024, arXiv 2410.08847)."""
    chosen, rejected = history.now("dpo_chosen_reward"), history.now("dpo_rejected_reward")
    if chosen is None or rejected is None or chosen >= -limit or rejected >= 0:
        return None
    text = (
        f"both sides of the pairs became less likely than under the reference: the reward of chosen "
        f"responses is {chosen:.2g}, that of rejected ones {rejected:.2g}"
    )
    return Finding(-chosen, limit, text)


RUN_ON_RISE = 10.0
"""Some models begin with unsure ends: only a rise is news."""


def run_on(history: History, limit: float) -> Finding | None:
    """The end token, certain before, becomes less likely where responses end. Each version moves it further
    the same way, until what responses learn from shows it (docs/algorithms.md)."""
    now = history.now("run_on_p95")
    ends = (history.first("run_on_p95"), history.before("run_on_p95"))
    known = [value for value in ends if value is not None]
    if now is None or not known or now <= max(limit, RUN_ON_RISE * min(known)):
        return None
    text = (
        f"one of twenty responses that ended would have gone on with a probability of {now:.2g} or more, "
        f"{min(known):.2g} before"
    )
    return Finding(now, limit, text)


CORRECT_RISE = 0.02
"""Rise from which longer or shorter responses have paid."""
CUT_RISE = 0.2


def length_explosion(history: History, growth: float | None, cut_share: float | None) -> Finding | None:
    """Longer and longer, or more and more of them cut at the limit."""
    cut, cut_before = history.now("cut_share"), history.before("cut_share")
    if cut_share is not None and cut is not None and cut_before is not None:
        if cut > max(cut_share, cut_before + CUT_RISE) and not has_paid(history):
            text = (
                f"{as_percent(cut)} of the responses are cut, {as_percent(cut_before)} were "
                f"{history.steps_back()} steps before"
            )
            return Finding(cut, cut_share, text)
    now, before = history.now("response_tokens_mean"), history.before("response_tokens_mean")
    if growth is None or now is None or not before or now < growth * before or has_paid(history):
        return None
    return Finding(now / before, growth, _words("grew", before, now, history))


def length_collapse(history: History, limit: float) -> Finding | None:
    """Shorter and shorter: the reasoning is gone."""
    now, before = history.now("response_tokens_mean"), history.before("response_tokens_mean")
    if now is None or not before or now > limit * before or has_paid(history):
        return None
    return Finding(now / before, limit, _words("shrank", before, now, history))


def has_paid(history: History) -> bool:
    """Whether more responses are correct than before; also where that is not known."""
    now, before = history.now("correct_mean"), history.before("correct_mean")
    return now is None or before is None or now - before >= CORRECT_RISE


def _words(verb: str, before: float, now: float, history: History) -> str:
    return (
        f"responses {verb} from {before:.0f} to {now:.0f} tokens in {history.steps_back()} steps, without "
        f"more correct ones"
    )


STEPS_APART = 10
"""Fewest steps between two evaluations that are compared."""


def reward_without_heldout(history: History, limit: float) -> Finding | None:
    """Training responses get better and held-out answers do not: in two evaluations in a row, so that no
    single one decides. The column reward_without_heldout has the same at each step, without that patience."""
    found = list(history.evaluations)
    if len(found) < 2 or _ahead_at_last(found[:-1], history, limit) is None:
        return None
    return _ahead_at_last(found, history, limit)


def _ahead_at_last(found: list[Evaluated], history: History, limit: float) -> Finding | None:
    """The last of these evaluations against one STEPS_APART before, and against the first one."""
    last = found[-1]
    earlier = [each for each in found if each.step <= last.step - STEPS_APART]
    if not earlier:
        return None
    # Greedy answers may turn late: over a whole run the reward has to be further ahead.
    return _ahead(earlier[-1], last, limit, history) or _ahead(earlier[0], last, 2 * limit, history)


def _ahead(then: Evaluated, now: Evaluated, limit: float, history: History) -> Finding | None:
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


def dead_groups(history: History, limit: float, *, groups_per_batch: int) -> Finding | None:
    """Nearly all groups of the batches have no advantage but zero, and that is not because all is solved."""
    if is_solved(history, share=SOLVED_SHARE):
        return None
    if (finding := _dead_while_a_step_waits(history, limit, groups_per_batch)) is not None:
        return finding
    dropped = history.now("no_signal_token_share")
    if dropped is not None and dropped >= limit:
        share = as_percent(dropped)
        text = f"dynamic sampling drops {share} of the tokens: their groups are all right or all wrong"
        return Finding(dropped, limit, text)
    dead = history.now("groups_zero_signal")
    # No correct response at all is an alarm of its own, which says more.
    if dead is None or not history.now("correct_mean") or dead / groups_per_batch < limit:
        return None
    text = f"{dead:.1f} of {groups_per_batch} groups of a batch have no signal: all right or all wrong"
    return Finding(dead / groups_per_batch, limit, text)


def _dead_while_a_step_waits(history: History, limit: float, groups_per_batch: int) -> Finding | None:
    """By the groups that were dropped since the last batch: a batch of others would be too few."""
    counts = history.dropped
    if counts is None or not counts["no_signal"]:
        return None
    dead, right = counts["no_signal"], counts["all_right"]
    share = dead / (dead + groups_per_batch)
    if share < limit or right / dead > SOLVED_SHARE:
        return None
    text = (
        f"dynamic sampling has dropped {dead:,} groups since the last batch and step {counts['step']} "
        f"still waits: {counts['all_wrong']:,} were all wrong, {right:,} all right"
    )
    return Finding(share, limit, text)


LEFT_OUT = {
    "too_stale_tokens": "were too stale (rollout.mask_staleness)",
    "masked_cut_off_tokens": "are of responses that were cut off (algorithm.masks_cut_off)",
    "nonfinite_tokens": "have no finite log-prob",
    "num_tokens": "were masked or rejected (algorithm.rejection)",
}
"""Column -> why its tokens are not trained, where no token of the step is."""


def left_out_tokens(history: History, limit: float) -> Finding | None:
    """The loss leaves out most tokens, or in a single step all."""
    if history.last("surviving_tokens") == 0.0:
        numbers = {name: history.last(name) for name in LEFT_OUT}
        text = (
            f"step {history.step} trained no token: {_why_none([numbers], history.text(WORDS))}. "
            f"It took no optimizer step, so version {history.step} has the weights of the version "
            f"before it"
        )
        return Finding(1.0, limit, text)
    share = history.now("left_out_share")
    if share is None or share <= limit:
        return None
    trained, masked = history.total("surviving_tokens"), history.total("masked_cut_off_tokens")
    cut_off = f"{masked:.0f} of responses that were cut off, " if masked else ""
    text = (
        f"the loss leaves out {as_percent(share)} of the tokens: in the last steps "
        f"{history.total('too_stale_tokens'):.0f} were too stale, {cut_off}"
        f"{history.total('num_tokens') - trained:.0f} masked or rejected, {trained:.0f} were trained"
    )
    return Finding(share, limit, text)


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
