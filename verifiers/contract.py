"""The contract that every verifier keeps, as checks that authors of verifiers run (`asyncrl verify
--contract NAME`).

Each check is one promise of `verifiers.verifier.Verifier`; a failed one says which promise, on what
input. Runs in the pool, as in training, so that a verifier that hangs or dies fails its check
instead of the caller."""

import asyncio
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from verifiers.golds import parse_gold
from verifiers.judgement import GroupJudgement, Limit, is_group_wise, judges_alone, min_responses
from verifiers.pool import VerifierPool
from verifiers.registry import load_verifier
from verifiers.task import Task, response_task, takes_task, with_task
from verifiers.verdict import Outcome, Verdict, correct
from verifiers.verdict import wrong as not_correct
from verifiers.verifier import CacheableVerifier, FastVerifier, Verifier

HOSTILE_RESPONSES: tuple[str, ...] = (
    "",
    " \n\t ",
    "\x00",
    "\\boxed{\x00}",
    "\\boxed{",
    "\\boxed{}",
    "}" * 10_000,
    "\\boxed{" + "{" * 10_000 + "1" + "}" * 10_000 + "}",
    "\\boxed{" + "9" * 100_000 + "}",
    "\\boxed{9^{9^{9^{9}}}}",
    "\\boxed{((((10000!)!)!)!)}",
    "\\boxed{\\frac{1}{0}}",
    "\\boxed{" + "(" * 500 + "x" + ")" * 500 + "}",
    "\\boxed{__import__('os').system('true')}",
    "\\boxed{" + "a" * 3000 + "!}",
    "<think>" * 1000,
    "</think>" * 1000,
    "\ud800",
    "\u202e\u0000\ufffe\U0010ffff",
    "a" * 1_000_000,
    "{" + '"a":[' * 5000,
    "\\begin{pmatrix}" + "1 & " * 1000 + "\\end{pmatrix}",
)
"""Responses that a policy may produce, by accident or because it pays."""
QUESTION = "What is 6 times 7?"
TASK = Task(QUESTION, ({"role": "user", "content": QUESTION},), {"prompt": QUESTION, "difficulty": 1})
"""The task of all responses, for a verifier that takes it."""


@dataclass(frozen=True, slots=True)
class Check:
    promise: str
    passed: bool
    detail: str = ""


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


async def check_contract(
    name: str,
    options: Mapping[str, object],
    golds: Sequence[object],
    *,
    folder: Path | None = None,
    right: Sequence[tuple[object, str]] = (),
    wrong: Sequence[tuple[object, str]] = (),
) -> list[Check]:
    """The verifier's checks. `golds`: values that must parse; `right`, `wrong`: (gold,
    response) pairs, if any."""
    try:
        verifier = load_verifier(name, options, folder=folder)
    except ValueError as error:
        return [Check("it loads by its name", False, str(error))]
    checks = [Check("it loads by its name", True)]
    references: list[Any] = []
    for gold in golds:
        try:
            references.append(parse_gold(verifier, gold))
        except Exception as error:  # a promise broken in any way is a failed check
            checks.append(Check("it parses the golds", False, f"{gold!r}: {type(error).__name__}: {error}"))
            return checks
    checks += [Check("it parses the golds", True), _refuses_bad_golds(verifier), _pickles(references)]
    async with VerifierPool(timeout_seconds=2.0) as pool:
        if is_group_wise(verifier):
            contract = GroupContract(pool, verifier, name, options, folder)
            checks += await contract.check(references, right, wrong)
        if not judges_alone(verifier):
            return checks
        checks.append(await _answers_everything(pool, name, options, references, folder))
        checks.append(await _same_twice(pool, name, options, references, folder))
        checks.append(await _grades(pool, verifier, (name, options, folder), right, want_correct=True))
        checks.append(await _grades(pool, verifier, (name, options, folder), wrong, want_correct=False))
        checks.append(await _fast_agrees(pool, verifier, (name, options, folder), references))
    return checks


def _refuses_bad_golds(verifier: Any) -> Check:
    promise = "parse_reference raises nothing but ValueError"
    for gold in (None, "", 3, True, [], {}, object(), "\x00", "}" * 100):
        try:
            verifier.parse_reference(gold)
        except ValueError as error:
            if not str(error).strip():
                return Check(promise, False, f"{gold!r}: a ValueError without a sentence")
        except Exception as error:  # a promise broken in any way is a failed check
            return Check(promise, False, f"{gold!r}: {type(error).__name__}: {error}")
    return Check(promise, True)


def _pickles(references: Sequence[Any]) -> Check:
    promise = "a reference can be sent to a worker"
    try:
        for reference in references:
            pickle.loads(pickle.dumps(reference))
    except Exception as error:  # whatever pickling raises
        return Check(promise, False, f"{type(error).__name__}: {error}")
    return Check(promise, True)


async def _answers_everything(
    pool: VerifierPool,
    name: str,
    options: Mapping[str, object],
    references: Sequence[Any],
    folder: Path | None,
) -> Check:
    promise = "no response makes it raise, hang or fault"
    for reference in references[:2]:
        jobs = [
            pool.judge(name, options, response, reference, folder=folder, task=partial(_task, response))
            for response in HOSTILE_RESPONSES
        ]
        for response, found in zip(HOSTILE_RESPONSES, await asyncio.gather(*jobs), strict=True):
            # One whose retry succeeds has failed too.
            failed = [*found.faults, found.verdict][0]
            if failed.outcome is Outcome.FAULT or found.limit is Limit.TIME:
                return Check(
                    promise, False, f"{response[:60]!r} ({len(response)} characters): {failed.detail}"
                )
    return Check(promise, True)


async def _same_twice(
    pool: VerifierPool,
    name: str,
    options: Mapping[str, object],
    references: Sequence[Any],
    folder: Path | None,
) -> Check:
    promise = "the same response gets the same verdict"
    for reference in references[:2]:
        for response in ("\\boxed{42}", "the answer is 42", "42"):
            made = partial(_task, response)
            first = await pool.verify(name, options, response, reference, folder=folder, task=made)
            second = await pool.verify(name, options, response, reference, folder=folder, task=made)
            if (first.outcome, first.score) != (second.outcome, second.score):
                return Check(
                    promise, False, f"{response!r}: {first.outcome.value}, then {second.outcome.value}"
                )
    return Check(promise, True)


async def _grades(
    pool: VerifierPool,
    verifier: Any,
    named: tuple[str, Mapping[str, object], Path | None],
    pairs: Sequence[tuple[object, str]],
    *,
    want_correct: bool,
) -> Check:
    name, options, folder = named
    promise = "right answers are correct" if want_correct else "wrong answers are not correct"
    for gold, response in pairs:
        reference = parse_gold(verifier, gold)
        made = partial(_task, response)
        verdict = await pool.verify(name, options, response, reference, folder=folder, task=made)
        if (verdict.outcome is Outcome.CORRECT) is not want_correct:
            return Check(promise, False, f"gold {gold!r}, response {response!r}: {verdict.outcome.value}")
    return Check(promise, True, "" if pairs else "no pairs given")


def _task(response: str) -> Task:
    return response_task(response, TASK)


async def _fast_agrees(
    pool: VerifierPool,
    verifier: Verifier,
    named: tuple[str, Mapping[str, object], Path | None],
    references: Sequence[Any],
) -> Check:
    promise = "verify_fast and cache_key agree with verify"
    if not isinstance(verifier, (FastVerifier, CacheableVerifier)):
        return Check(promise, True, "it has neither")
    for reference in references[:2]:
        # Pickled: its class may be in the verifier's own file, which a worker has yet to load.
        given = (*named, pickle.dumps(reference))
        verdict = await pool.verify(f"{__name__}:Agreement", {}, "", given)
        if verdict.outcome is not Outcome.CORRECT:
            return Check(promise, False, verdict.detail)
    return Check(promise, True)


class Agreement:
    """Compares fast path, key and verdict of a verifier. Itself one, so that it runs in a worker."""

    def parse_reference(self, raw: object) -> object:
        return raw

    def verify(
        self, response: str, reference: tuple[str, Mapping[str, object], Path | None, bytes]
    ) -> Verdict:
        """CORRECT where the (name, options, folder, pickled reference) agrees with itself."""
        name, options, folder, pickled = reference
        verifier = load_verifier(name, options, folder=folder)
        gold = pickle.loads(pickled)
        # A pool keeps verdicts of one task apart from those of another.
        has_tasks = takes_task(verifier)
        by_key: dict[object, Verdict] = {}
        for text in ("\\boxed{42}", "so \\boxed{42}", "\\boxed{41}", "42", ""):
            given = text, gold, _task(text)
            verdict = with_task(verifier.verify)(*given)
            fast = with_task(verifier.verify_fast)(*given) if isinstance(verifier, FastVerifier) else None
            if fast is not None and (fast.outcome, fast.score) != (verdict.outcome, verdict.score):
                return not_correct(detail=f"{text!r}: {fast.outcome.value} against {verdict.outcome.value}")
            key = with_task(verifier.cache_key)(*given) if isinstance(verifier, CacheableVerifier) else None
            place = (key, text if has_tasks else "")
            known = by_key.setdefault(place, verdict) if key is not None else verdict
            if (known.outcome, known.score) != (verdict.outcome, verdict.score):
                return not_correct(detail=f"{text!r}: the same key, but another verdict")
        return correct()
