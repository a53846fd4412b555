"""Several verifiers as one: a weighted mean of their scores, and shaping from parts that only shape."""

import dataclasses
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from verifiers.golds import parse_gold
from verifiers.judgement import is_group_wise, judges_alone
from verifiers.plugins import Bounds, checked
from verifiers.registry import build_verifier, check_options
from verifiers.task import Task, takes_task, with_task
from verifiers.verdict import MAX_NAME_CHARACTERS, MAX_SCORES, Outcome, Verdict, weighted_sum
from verifiers.verifier import CheckedVerifier, LimitedVerifier, PreparedVerifier, Verifier


@dataclass(frozen=True, kw_only=True)
class Part:
    verifier: Verifier = dataclasses.field(init=False)
    name: str
    options: dict[str, Any] | None = None
    weight: Annotated[float, Bounds(-100, 100)] = 1.0
    """Share of this part's score in the score (or in the shaping, when `shaping`)."""
    shaping: bool = False
    required: bool = False
    field: str | None = None
    folder: Path | None

    def __post_init__(self) -> None:
        verifier = build_verifier(self.name, self.options or {}, folder=self.folder)
        object.__setattr__(self, "verifier", verifier)


def _checked_part(raw: object, folder: Path | None) -> dict[str, Any]:
    if isinstance(raw, str):
        raw = {"name": raw}
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
        raise ValueError(f"A part of verifier 'weighted' is {raw!r}, expected an object with a 'name'.")
    part = checked("Verifier 'weighted (part)'", Part, raw, internal=("folder",))
    if part.get("weight", 1.0) < 0 and not part.get("shaping"):
        raise ValueError(
            f"Option 'weight' of the part {part['name']!r} is {part['weight']:g}, expected a number in "
            "[0, 100]: only a part with shaping may have a negative weight."
        )
    return {**part, "options": check_options(part["name"], part.get("options") or {}, folder=folder)}


class WeightedVerifier:
    """Sums parts: {"name", "options", "weight" (1), "shaping" (false), "required" (false), "field" (null)}.

    The score is the mean of the scored parts by weight; CORRECT when every scored part is CORRECT. A
    `required` part that is not CORRECT makes the whole WRONG with score 0. A `shaping` part adds weight *
    score to the shaping only. `scores` of the verdict has each part's score by its name; a second part of one
    name has the suffix _2. A part that faults makes the whole a FAULT: half a verdict is none. What parts
    give as shaping, and to turns and spans, is passed on as it is. `field`: the part's own entry in a gold
    object."""

    def __init__(self, *, parts: list[Any], folder: Path | None = None) -> None:
        """`parts`: as `check_parts` gives them."""
        if not parts:
            raise ValueError(f"Option 'parts' of verifier 'weighted' is {parts!r}, expected a list of parts.")
        self._parts = [Part(folder=folder, **part) for part in parts]
        for part in self._parts:
            if is_group_wise(part.verifier) and not judges_alone(part.verifier):
                raise ValueError(
                    f"The part {part.name!r} of verifier 'weighted' judges whole groups, and can be no part: "
                    f"name it alone."
                )
        self._total = weighted_sum((1.0, part.weight) for part in self._parts if not part.shaping)
        if self._total <= 0:
            raise ValueError(
                "Verifier 'weighted' has no part that scores, expected one with a weight above 0."
            )
        limits = [
            part.verifier.pool_timeout_seconds
            for part in self._parts
            if isinstance(part.verifier, LimitedVerifier)
        ]
        own_limits = [limit for limit in limits if limit is not None]
        # One part after the other: their limits add up.
        self.pool_timeout_seconds = sum(own_limits) + 5.0 if own_limits else None

    @staticmethod
    def check_parts(options: dict[str, Any], folder: Path | None) -> dict[str, Any]:
        """The options with each part written out and checked. Raises ValueError."""
        return {**options, "parts": [_checked_part(part, folder) for part in options["parts"]]}

    @property
    def takes_any_gold(self) -> bool:
        """Each part asks for its own."""
        return True

    @property
    def members(self) -> list[Verifier]:
        """The verifiers of the parts."""
        return [part.verifier for part in self._parts]

    def parse_reference(self, raw: object) -> tuple[Any, ...]:
        return tuple(parse_gold(part.verifier, self._gold_of(part, raw)) for part in self._parts)

    @staticmethod
    def _gold_of(part: Part, raw: object) -> object:
        if part.field is None:
            return raw
        if not isinstance(raw, Mapping) or part.field not in raw:
            raise ValueError(
                f"The gold is {raw!r}, expected an object with {part.field!r} for the part {part.name!r}."
            )
        return raw[part.field]

    def check_machine(self) -> None:
        for part in self._parts:
            if isinstance(part.verifier, CheckedVerifier):
                part.verifier.check_machine()

    def preparation(self, reference: tuple[Any, ...]) -> Hashable | None:
        """Preparations of the parts; None where no part has one."""
        whats = tuple(
            part.verifier.preparation(own) if isinstance(part.verifier, PreparedVerifier) else None
            for part, own in zip(self._parts, reference, strict=True)
        )
        return None if all(what is None for what in whats) else whats

    def prepare(self, what: tuple[Any, ...]) -> None:
        for part, own in zip(self._parts, what, strict=True):
            if own is not None and isinstance(part.verifier, PreparedVerifier):
                part.verifier.prepare(own)

    @property
    def takes_task(self) -> bool:
        """Whether one of the parts does."""
        return any(takes_task(part.verifier) for part in self._parts)

    def verify(self, response: str, reference: tuple[Any, ...], task: Task | None = None) -> Verdict:
        told = task or Task()
        verdicts = [
            with_task(part.verifier.verify)(response, own, told)
            for part, own in zip(self._parts, reference, strict=True)
        ]
        pairs = list(zip(self._parts, verdicts, strict=True))
        detail = "; ".join(
            f"{part.name}: {verdict.outcome.value} ({verdict.detail})" for part, verdict in pairs
        )
        if any(verdict.score is None for verdict in verdicts):
            return Verdict(Outcome.FAULT, None, detail=detail)
        shaping = weighted_sum(
            [(1.0, verdict.shaping) for verdict in verdicts]
            + [(part.weight, verdict.score or 0.0) for part, verdict in pairs if part.shaping]
        )
        scored = [(part, verdict) for part, verdict in pairs if not part.shaping]
        score = weighted_sum(
            [(part.weight, verdict.score or 0.0) for part, verdict in scored], divisor=self._total
        )
        failed = any(part.required and verdict.outcome is not Outcome.CORRECT for part, verdict in pairs)
        counted = [verdict for part, verdict in scored if part.weight > 0 or part.required]
        main = next((verdict for verdict in counted if verdict.extracted is not None), counted[0])
        return Verdict(
            _outcome(counted, failed),
            0.0 if failed else min(score, 1.0),
            extracted=main.extracted,
            detail=detail,
            shaping=shaping,
            method=main.method,
            is_repeatable=all(verdict.is_repeatable for verdict in verdicts),
            turn_rewards=_turn_rewards(verdicts),
            spans=tuple(span for verdict in verdicts for span in verdict.spans),
            scores=_scores(pairs),
        )


def _scores(pairs: list[tuple[Part, Verdict]]) -> dict[str, float]:
    """The score of each part by its name, as far as a verdict holds them."""
    found: dict[str, float] = {}
    counts = Counter[str]()
    for part, verdict in pairs[:MAX_SCORES]:
        counts[part.name] += 1
        name = part.name[-MAX_NAME_CHARACTERS + 4 :]
        found[name if counts[part.name] == 1 else f"{name}_{counts[part.name]}"] = verdict.score or 0.0
    return found


def _turn_rewards(verdicts: list[Verdict]) -> tuple[float, ...] | None:
    """The sums by turn. Raises ValueError where parts speak of different numbers of turns."""
    given = [verdict.turn_rewards for verdict in verdicts if verdict.turn_rewards is not None]
    if not given:
        return None
    if len(numbers := {len(rewards) for rewards in given}) > 1:
        raise ValueError(f"Parts gave rewards to {sorted(numbers)} turns; a response has one number of them.")
    return tuple(weighted_sum([(1.0, reward) for reward in rewards]) for rewards in zip(*given, strict=True))


def _outcome(scored: list[Verdict], failed: bool) -> Outcome:
    if not failed and all(verdict.outcome is Outcome.CORRECT for verdict in scored):
        return Outcome.CORRECT
    if all(verdict.outcome is Outcome.NO_ANSWER for verdict in scored):
        return Outcome.NO_ANSWER
    return Outcome.WRONG
