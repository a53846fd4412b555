"""The contract of verifiers that judge groups, as checks in the pool; the rest is `verifiers.contract`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verifiers.check import HOSTILE_RESPONSES, TASK, Check
from verifiers.golds import parse_gold
from verifiers.groups import GroupJudgement, min_responses
from verifiers.pool import VerifierPool
from verifiers.task import response_task
from verifiers.verdict import Outcome

PLAIN = ("\\boxed{42}", "the answer is 42", "", "41", "42 or 43", "\\boxed{42}", "so it is 42.", "42")
"""Two of them are equal."""
GROUP_SIZE = 4
CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class GroupContract:
    """Checks of one verifier. `pool` runs it as in training."""

    pool: VerifierPool
    verifier: Any
    name: str
    options: Mapping[str, object]
    folder: Path | None

    async def check(
        self,
        references: Sequence[Any],
        right: Sequence[tuple[object, str]],
        wrong: Sequence[tuple[object, str]],
    ) -> list[Check]:
        """`right`, `wrong`: (gold, response) pairs."""
        return [
            await self._answers_every_group(references),
            await self._same_in_any_order(references),
            await self._prefers(right, wrong),
        ]

    async def _answers_every_group(self, references: Sequence[Any]) -> Check:
        promise = "no group of responses makes it raise, hang or fault"
        size = max(GROUP_SIZE, min_responses(self.verifier))
        groups = [HOSTILE_RESPONSES[at : at + size] for at in range(0, len(HOSTILE_RESPONSES), size)]
        smallest = [("42",) * min_responses(self.verifier)]
        for reference in references[:2]:
            for group in [*smallest, *(_filled(group, size) for group in groups)]:
                found = await self._judge(group, reference)
                # One whose retry succeeds has failed too.
                for verdict in [*found.faults, *found.verdicts]:
                    if verdict.outcome is Outcome.FAULT:
                        shown = [f"{text[:20]!r} ({len(text)} characters)" for text in group]
                        return Check(promise, False, f"{', '.join(shown)}: {verdict.detail}")
        return Check(promise, True)

    async def _same_in_any_order(self, references: Sequence[Any]) -> Check:
        promise = "a group gets the same verdicts again, and in any order"
        for reference in references[:2]:
            group = _filled(PLAIN, max(len(PLAIN), min_responses(self.verifier)))
            first = await self._judge(group, reference)
            turned = await self._judge(group[::-1], reference)
            for text, here, there in zip(group, first.verdicts, reversed(turned.verdicts), strict=True):
                is_close = abs((here.score or 0.0) - (there.score or 0.0)) <= CLOSE
                if here.outcome is not there.outcome or not is_close:
                    return Check(
                        promise,
                        False,
                        f"{text!r}: {here.outcome.value} ({here.score}), in the reversed group "
                        f"{there.outcome.value} ({there.score})",
                    )
        return Check(promise, True)

    async def _prefers(
        self, right: Sequence[tuple[object, str]], wrong: Sequence[tuple[object, str]]
    ) -> Check:
        """In groups of the right and wrong answers to one gold."""
        promise = "right answers score above wrong ones"
        num_groups = 0
        for gold, good in _by_gold(right):
            bad = [text for other, text in wrong if other == gold]
            if len(good) + len(bad) < min_responses(self.verifier) or not bad:
                continue
            num_groups += 1
            found = await self._judge([*good, *bad], parse_gold(self.verifier, gold))
            scores = [verdict.score if verdict.score is not None else -1.0 for verdict in found.verdicts]
            if min(scores[: len(good)]) <= max(scores[len(good) :]):
                return Check(
                    promise, False, f"gold {gold!r}: right {scores[: len(good)]}, wrong {scores[len(good) :]}"
                )
        return Check(promise, True, "" if num_groups else "no gold with right and wrong answers given")

    async def _judge(self, group: Sequence[str], reference: Any) -> GroupJudgement:
        tasks = [response_task(response, TASK) for response in group]
        return await self.pool.judge_group(
            self.name, self.options, list(group), reference, folder=self.folder, tasks=lambda: tasks
        )


def _filled(group: Sequence[str], size: int) -> tuple[str, ...]:
    return (*group, *("42" for _ in range(size - len(group))))


def _by_gold(pairs: Sequence[tuple[object, str]]) -> list[tuple[object, list[str]]]:
    found: list[tuple[object, list[str]]] = []
    for gold, text in pairs:
        texts = next((texts for known, texts in found if known == gold), None)
        if texts is None:
            found.append((gold, [text]))
        else:
            texts.append(text)
    return found
