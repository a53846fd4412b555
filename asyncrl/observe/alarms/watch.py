"""All alarms of a run: which are on, when one begins, when it ends.

An alarm is told as its condition begins to hold, and again once it has not held for CLEAR_STEPS steps in a
row; in between it is silent. What was on stays on over a restart of the run.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncrl.observe.alarms.collapse import EntropyCollapse, LikelihoodDisplacement, OneAnswer, RouterCollapse
from asyncrl.observe.alarms.history import History
from asyncrl.observe.alarms.learning import (
    ClippedCritic,
    DeadGroups,
    IgnorantCritic,
    LeftOutTokens,
    RewardWithoutHeldOut,
)
from asyncrl.observe.alarms.numbers import (
    EffectiveSamples,
    LengthCollapse,
    LengthExplosion,
    MemoryGrowth,
    MemoryLimit,
    MismatchTrend,
    NotANumber,
    OneRowSpike,
    RunOn,
    SkippedSteps,
    VerifierFaults,
    capped_share,
    clipped_share,
    trust_region_share,
)
from asyncrl.observe.alarms.rule import NO_CORRECT, Alarm, Finding, Rule
from asyncrl.recipe import Alarms
from asyncrl.run.metrics_file import Metrics

ALARM = "alarm"
"""The event of metrics.jsonl."""
CLEAR_STEPS = 10


def rules_of(section: Alarms, *, groups_per_batch: int, critic_clip: float = math.inf) -> list[Rule]:
    """Rules that the recipe leaves on. `critic_clip` is the norm that the critic's gradient is clipped to."""
    rules: list[tuple[Callable[..., Rule], list[float | None]]] = [
        (EntropyCollapse, [section.entropy_nats]),
        (LengthExplosion, [section.length_growth, section.cut_share]),
        (RunOn, [section.run_on_p95]),
        (LengthCollapse, [section.length_shrink]),
        (RewardWithoutHeldOut, [section.reward_without_heldout]),
        (MismatchTrend, [section.mismatch_kl]),
        (EffectiveSamples, [section.effective_share]),
        (capped_share, [section.capped_share]),
        (clipped_share, [section.clipped_share]),
        (trust_region_share, [section.trust_region_share]),
        (RouterCollapse, [section.busiest_expert_share]),
        (LeftOutTokens, [section.left_out_share]),
        (functools.partial(DeadGroups, groups_per_batch=groups_per_batch), [section.dead_group_share]),
        (VerifierFaults, [section.fault_share]),
        (OneAnswer, [section.answer_share]),
        (NotANumber, [section.nonfinite_share]),
        (SkippedSteps, [section.skipped_steps]),
        (IgnorantCritic, [section.explained_variance]),
        (functools.partial(ClippedCritic, clip=critic_clip), [section.clipped_critic_share]),
        (LikelihoodDisplacement, [section.chosen_reward_loss]),
        (OneRowSpike, [section.spike_row_share]),
        (MemoryGrowth, [section.memory_growth]),
        (MemoryLimit, [section.memory_limit_share, section.memory_stall_share]),
    ]
    # Each limit of a rule with several may be off alone.
    return [make(*limits) for make, limits in rules if any(limit is not None for limit in limits)]


class AlarmWatch:
    """Receives steps and evaluations, and finds the alarms that begin and that end. `admit`, which its caller
    asks about each and about alarms of other parts, alone changes what is on."""

    def __init__(self, rules: Sequence[Rule], *, run: str) -> None:
        """`run` is the name of the run folder, as the page's routes have it."""
        self._rules = rules
        self._run = run
        self._history = History()
        self._on: set[str] = set()
        self._known: set[str] = set()
        self._num_clear: dict[str, int] = {}

    def restore(self, metrics: Metrics) -> None:
        """Reads what earlier starts of the run measured, and which alarms they left on."""
        steps = [(row["step"], 0, row) for row in metrics.steps]
        evaluations = [(row["step"], 1, row) for row in metrics.evaluations]
        for _, is_evaluation, row in sorted(steps + evaluations, key=lambda each: each[:2]):
            if is_evaluation:
                self._history.evaluated(row)
            else:
                self._history.add(row, is_of_this_start=False)
        for event in metrics.events:
            if event["event"] == ALARM:
                self._note(str(event.get("alarm")), is_on=bool(event.get("is_on")))

    def step(self, row: Mapping[str, Any]) -> list[Alarm]:
        """Alarms that begin or end with this step."""
        self._history.add(row)
        found = []
        if NO_CORRECT[0] in self._on and row.get("correct_mean"):
            found.append(Alarm(*NO_CORRECT, self._history.step, None))
        for rule in self._rules:
            finding = rule.check(self._history)
            clear = 0 if finding is not None else self._num_clear.get(rule.name, 0) + 1
            self._num_clear[rule.name] = clear
            if finding is not None and rule.name not in self._on:
                found.append(_alarm(rule, self._history.step, finding))
            elif clear >= CLEAR_STEPS and rule.name in self._on:
                found.append(_alarm(rule, self._history.step, None))
        return found

    def dropped(self, row: Mapping[str, Any]) -> list[Alarm]:
        """Counts while a step waits; they may begin an alarm at that step, and only steps end one."""
        self._history.dropped = row
        found = []
        for rule in self._rules:
            if rule.name not in self._on and (finding := rule.check(self._history)) is not None:
                self._num_clear[rule.name] = 0
                found.append(_alarm(rule, int(row["step"]), finding))
        return found

    def evaluation(self, row: Mapping[str, Any]) -> None:
        self._history.evaluated(row)

    def admit(self, alarm: Alarm) -> dict[str, Any] | None:
        """The fields of its event in metrics.jsonl; None where it says what is known."""
        if alarm.is_on == (alarm.name in self._on):
            return None
        is_first = alarm.name not in self._known
        self._note(alarm.name, is_on=alarm.is_on)
        finding = alarm.finding
        return {
            "alarm": alarm.name,
            "step": alarm.step,
            "text": f"the alarm {alarm.name} is over" if finding is None else finding.text,
            "value": None if finding is None else finding.value,
            "limit": None if finding is None else finding.limit,
            "key": alarm.key,
            "view": f"#/{self._run}/{alarm.view}",
            "is_on": alarm.is_on,
            "is_first": is_first,
        }

    def _note(self, name: str, *, is_on: bool) -> None:
        self._known.add(name)
        if is_on:
            self._on.add(name)
        else:
            self._on.discard(name)


def _alarm(rule: Rule, step: int, finding: Finding | None) -> Alarm:
    return Alarm(rule.name, rule.key, rule.view, step, finding)
