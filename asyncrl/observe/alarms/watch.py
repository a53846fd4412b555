"""All alarms of a run: which are on, when one begins, when it ends.

An alarm is told as its condition begins to hold, and again once it has not held for CLEAR_STEPS steps in a
row; in between it is silent. What was on stays on over a restart of the run.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncrl.observe.alarms import learning, numbers
from asyncrl.observe.alarms.rule import NO_CORRECT, Alarm, Finding, History, Rule
from asyncrl.recipe import Alarms
from asyncrl.run.metrics_file import Metrics

ALARM = "alarm"
"""The event of metrics.jsonl."""
CLEAR_STEPS = 10


def rules_of(section: Alarms, *, groups_per_batch: int, critic_clip: float = math.inf) -> list[Rule]:
    """Rules that the recipe leaves on. `critic_clip` is the norm that the critic's gradient is clipped to."""
    dead_groups = functools.partial(learning.dead_groups, groups_per_batch=groups_per_batch)
    clipped_critic = functools.partial(numbers.clipped_critic, clip=critic_clip)
    capped_share = numbers.large_share(
        "capped_share", "have an importance weight at algorithm.importance_weight.cap"
    )
    clipped_share = numbers.large_share("clipped_share", "have no gradient, since the surrogate clips them")
    trust_region_share = numbers.large_share(
        "trust_region_share", "have no policy loss, since they are outside algorithm.trust_region"
    )
    rules: list[tuple[str, Callable[..., Finding | None], tuple[str, ...], str]] = [
        ("entropy_collapse", learning.entropy_collapse, ("entropy_nats",), "curves"),
        ("length_explosion", learning.length_explosion, ("length_growth", "cut_share"), "curves"),
        ("run_on", learning.run_on, ("run_on_p95",), "curves"),
        ("length_collapse", learning.length_collapse, ("length_shrink",), "curves"),
        ("reward_without_heldout", learning.reward_without_heldout, ("reward_without_heldout",), "groups"),
        ("mismatch_kl", numbers.mismatch_kl, ("mismatch_kl",), "curves"),
        ("effective_samples", numbers.effective_samples, ("effective_share",), "curves"),
        ("capped_share", capped_share, ("capped_share",), "curves"),
        ("clipped_share", clipped_share, ("clipped_share",), "curves"),
        ("trust_region_share", trust_region_share, ("trust_region_share",), "curves"),
        ("router_collapse", numbers.router_collapse, ("busiest_expert_share",), "curves"),
        ("left_out_tokens", learning.left_out_tokens, ("left_out_share",), "curves"),
        ("dead_groups", dead_groups, ("dead_group_share",), "groups"),
        ("verifier_faults", numbers.verifier_faults, ("fault_share",), "faults"),
        ("one_answer", learning.one_answer, ("answer_share",), "answers"),
        ("not_a_number", numbers.not_a_number, ("nonfinite_share",), "curves"),
        ("skipped_steps", numbers.skipped_steps, ("skipped_steps",), "curves"),
        ("ignorant_critic", numbers.ignorant_critic, ("explained_variance",), "curves"),
        ("clipped_critic", clipped_critic, ("clipped_critic_share",), "curves"),
        ("likelihood_displacement", learning.likelihood_displacement, ("chosen_reward_loss",), "curves"),
        ("gradient_spike", numbers.gradient_spike, ("spike_row_share",), "curves"),
        ("memory_growth", numbers.memory_growth, ("memory_growth",), "curves"),
        ("memory_limit", numbers.memory_limit, ("memory_limit_share", "memory_stall_share"), "curves"),
    ]
    found = [Rule(*rule, tuple(getattr(section, key) for key in rule[2])) for rule in rules]
    # Each limit of a rule with several may be off alone.
    return [rule for rule in found if any(limit is not None for limit in rule.limits)]


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
                found.append(rule.alarm(self._history.step, finding))
            elif clear >= CLEAR_STEPS and rule.name in self._on:
                found.append(rule.alarm(self._history.step, None))
        return found

    def dropped(self, row: Mapping[str, Any]) -> list[Alarm]:
        """Counts while a step waits; they may begin an alarm at that step, and only steps end one."""
        self._history.dropped = row
        found = []
        for rule in self._rules:
            if rule.name not in self._on and (finding := rule.check(self._history)) is not None:
                self._num_clear[rule.name] = 0
                found.append(rule.alarm(int(row["step"]), finding))
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
