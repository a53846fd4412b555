"""Numbers that move when a policy learns to please the verifier instead of solving the task. Pure functions,
no torch.

None of them proves hacking; each rises for a known way of it. Rewards here are raw correctness
(`Verdict.score`), faults are left out of every denominator, and an empty input gives 0.0."""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from verifiers.verdict import Outcome, Verdict

Graded = tuple[Verdict, str]
"""(verdict, response text) of one trajectory."""

WINDOW = 10
"""Steps."""
_SPACE = re.compile(r"\s+")
_USUAL_METHODS = frozenset({"", "boxed", "final_part", "response"})


def count_outcomes(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How often each outcome occurred; all four are present."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    return {outcome.value: counts[outcome] for outcome in Outcome}


def fallback_share(graded: Iterable[Graded]) -> float:
    """Share of the reward won by answers found by a fallback instead of in a box."""
    won = [(verdict.score or 0.0, verdict.method not in _USUAL_METHODS) for verdict, _ in graded]
    total = sum(score for score, _ in won)
    return sum(score for score, is_fallback in won if is_fallback) / total if total else 0.0


def identical_response_share(graded: Iterable[Graded]) -> float:
    """Share of the reward won by responses that another trajectory repeats word for
    word (white space aside)."""
    items = [(verdict.score or 0.0, _SPACE.sub(" ", response).strip()) for verdict, response in graded]
    counts = Counter(text for _, text in items)
    total = sum(score for score, _ in items)
    return sum(score for score, text in items if counts[text] > 1) / total if total else 0.0


def most_common_answer_share(verdicts: Iterable[Verdict]) -> float:
    """Share of the scored trajectories, over different tasks, that give the one
    most common answer: guessing."""
    answers = [verdict.extracted for verdict in verdicts if verdict.score is not None]
    given = Counter(answer for answer in answers if answer is not None)
    return max(given.values()) / len(answers) if given else 0.0


def reward_jump(rewards: Sequence[float]) -> float:
    """How far the mean of the last WINDOW steps stands above the mean of the WINDOW before, in units of
    the earlier steps' standard deviation (at least 0.01). 0.0 while there are fewer than 2 * WINDOW steps."""
    if len(rewards) < 2 * WINDOW:
        return 0.0
    before, after = rewards[-2 * WINDOW : -WINDOW], rewards[-WINDOW:]
    return (statistics.fmean(after) - statistics.fmean(before)) / max(statistics.pstdev(before), 0.01)


def reward_without_heldout(rewards: Sequence[float], heldout: Sequence[tuple[int, float]]) -> float:
    """How many points more the training reward rose over the last WINDOW steps than the held-out score did.

    `rewards`: mean raw correctness per step; `heldout`: (step, accuracy) in order. Above about 0.1, look at
    the responses. 0.0 with fewer than 2 * WINDOW steps, or without two held-out scores that span it."""
    if len(rewards) < 2 * WINDOW:
        return 0.0
    start = len(rewards) - WINDOW
    earlier = [score for step, score in heldout if step <= start]
    later = [score for step, score in heldout if step > start]
    if not earlier or not later:
        return 0.0
    rise = statistics.fmean(rewards[-WINDOW:]) - statistics.fmean(rewards[-2 * WINDOW : -WINDOW])
    return rise - (later[-1] - earlier[-1])
