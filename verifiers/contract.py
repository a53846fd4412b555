"""The contract that every verifier keeps, as checks that authors of verifiers run (`asyncrl verify
--contract NAME`).

Each check is one promise of `verifiers.verifier.Verifier`; a failed one says which promise, on what
input. Runs in the pool, as in training, so that a verifier that hangs or dies fails its check
instead of the caller."""

import asyncio
import pickle
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verifiers.golds import parse_gold
from verifiers.judgement import GroupJudgement, Judgement, Limit, is_group_wise, judges_alone, min_responses
from verifiers.pool import VerifierPool
from verifiers.registry import load_verifier
from verifiers.task import Task, response_task, takes_task, with_task
from verifiers.verdict import Outcome, Verdict, correct
from verifiers.verdict import wrong as not_correct
from verifiers.verifier import CacheableVerifier, FastVerifier

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
Pairs = Sequence[tuple[object, str]]
"""Golds with a response each."""


class _Broken(Exception):
    """A promise is broken; the message says by what."""


async def check_contract(
    name: str,
    options: Mapping[str, object],
    golds: Sequence[object],
    *,
    folder: Path | None = None,
    right: Pairs = (),
    wrong: Pairs = (),
) -> list[Check]:
    """The verifier's checks. `golds`: values that must parse; `right`, `wrong`: (gold,
    response) pairs, if any."""
    try:
        verifier = load_verifier(name, options, folder=folder)
    except ValueError as error:
        return [Check("it loads by its name", False, str(error))]
    async with VerifierPool(timeout_seconds=2.0) as pool:
        contract = _Contract(pool, verifier, name, options, folder)
        parses = await _checked("it parses the golds", contract.parses(golds))
        checks = [Check("it loads by its name", True), parses]
        if not parses.passed:
            return checks
        kept = {
            "parse_reference raises nothing but ValueError": contract.refuses_bad_golds(),
            "a reference can be sent to a worker": contract.pickles(),
        }
        if is_group_wise(verifier):
            kept |= {
                "no group of responses makes it raise, hang or fault": contract.answers_every_group(),
                "a group gets the same verdicts again, and in any order": contract.same_in_any_order(),
                "right answers score above wrong ones": contract.prefers(right, wrong),
            }
        if judges_alone(verifier):
            kept |= {
                "no response makes it raise, hang or fault": contract.answers_everything(),
                "the same response gets the same verdict": contract.same_twice(),
                "right answers are correct": contract.grades(right, are_correct=True),
                "wrong answers are not correct": contract.grades(wrong, are_correct=False),
                "verify_fast and cache_key agree with verify": contract.fast_agrees(),
            }
        return checks + [await _checked(promise, check) for promise, check in kept.items()]


async def _checked(promise: str, check: Awaitable[str]) -> Check:
    """The check of one promise, which returns a note, or raises _Broken."""
    try:
        return Check(promise, True, await check)
    except _Broken as broken:
        return Check(promise, False, str(broken))


@dataclass(frozen=True, slots=True)
class _Contract:
    """Checks of one verifier. `pool` runs it as in training."""

    pool: VerifierPool
    verifier: Any
    name: str
    options: Mapping[str, object]
    folder: Path | None
    references: list[Any] = field(default_factory=list)
    """References of the golds, once they are parsed. Slow checks take the first two."""

    async def parses(self, golds: Sequence[object]) -> str:
        for gold in golds:
            try:
                self.references.append(parse_gold(self.verifier, gold))
            except Exception as error:  # a promise broken in any way is a failed check
                raise _Broken(f"{gold!r}: {type(error).__name__}: {error}") from error
        return ""

    async def refuses_bad_golds(self) -> str:
        for gold in (None, "", 3, True, [], {}, object(), "\x00", "}" * 100):
            try:
                self.verifier.parse_reference(gold)
            except ValueError as error:
                if not str(error).strip():
                    raise _Broken(f"{gold!r}: a ValueError without a sentence") from error
            except Exception as error:  # a promise broken in any way is a failed check
                raise _Broken(f"{gold!r}: {type(error).__name__}: {error}") from error
        return ""

    async def pickles(self) -> str:
        try:
            for reference in self.references:
                pickle.loads(pickle.dumps(reference))
        except Exception as error:  # whatever pickling raises
            raise _Broken(f"{type(error).__name__}: {error}") from error
        return ""

    async def answers_every_group(self) -> str:
        least = min_responses(self.verifier)
        size = max(GROUP_SIZE, least)
        groups = [HOSTILE_RESPONSES[at : at + size] for at in range(0, len(HOSTILE_RESPONSES), size)]
        for reference in self.references[:2]:
            for group in [("42",) * least, *(_filled(group, size) for group in groups)]:
                found = await self._judge_group(group, reference)
                # One whose retry succeeds has failed too.
                for verdict in [*found.faults, *found.verdicts]:
                    if verdict.outcome is Outcome.FAULT:
                        shown = [f"{text[:20]!r} ({len(text)} characters)" for text in group]
                        raise _Broken(f"{', '.join(shown)}: {verdict.detail}")
        return ""

    async def same_in_any_order(self) -> str:
        for reference in self.references[:2]:
            group = _filled(PLAIN, max(len(PLAIN), min_responses(self.verifier)))
            first = await self._judge_group(group, reference)
            turned = await self._judge_group(group[::-1], reference)
            for text, here, there in zip(group, first.verdicts, reversed(turned.verdicts), strict=True):
                is_close = abs((here.score or 0.0) - (there.score or 0.0)) <= CLOSE
                if here.outcome is not there.outcome or not is_close:
                    raise _Broken(
                        f"{text!r}: {here.outcome.value} ({here.score}), in the reversed group "
                        f"{there.outcome.value} ({there.score})"
                    )
        return ""

    async def prefers(self, right: Pairs, wrong: Pairs) -> str:
        """In groups of the right and wrong answers to one gold."""
        num_groups = 0
        for gold, good in _by_gold(right):
            bad = [text for other, text in wrong if other == gold]
            if len(good) + len(bad) < min_responses(self.verifier) or not bad:
                continue
            num_groups += 1
            found = await self._judge_group([*good, *bad], parse_gold(self.verifier, gold))
            scores = [verdict.score if verdict.score is not None else -1.0 for verdict in found.verdicts]
            if min(scores[: len(good)]) <= max(scores[len(good) :]):
                raise _Broken(f"gold {gold!r}: right {scores[: len(good)]}, wrong {scores[len(good) :]}")
        return "" if num_groups else "no gold with right and wrong answers given"

    async def answers_everything(self) -> str:
        for reference in self.references[:2]:
            jobs = [self._judge(response, reference) for response in HOSTILE_RESPONSES]
            for response, found in zip(HOSTILE_RESPONSES, await asyncio.gather(*jobs), strict=True):
                # One whose retry succeeds has failed too.
                failed = [*found.faults, found.verdict][0]
                if failed.outcome is Outcome.FAULT or found.limit is Limit.TIME:
                    raise _Broken(f"{response[:60]!r} ({len(response)} characters): {failed.detail}")
        return ""

    async def same_twice(self) -> str:
        for reference in self.references[:2]:
            for response in ("\\boxed{42}", "the answer is 42", "42"):
                first, second = [(await self._judge(response, reference)).verdict for _ in range(2)]
                if (first.outcome, first.score) != (second.outcome, second.score):
                    raise _Broken(f"{response!r}: {first.outcome.value}, then {second.outcome.value}")
        return ""

    async def grades(self, pairs: Pairs, *, are_correct: bool) -> str:
        for gold, response in pairs:
            verdict = (await self._judge(response, parse_gold(self.verifier, gold))).verdict
            if (verdict.outcome is Outcome.CORRECT) is not are_correct:
                raise _Broken(f"gold {gold!r}, response {response!r}: {verdict.outcome.value}")
        return "" if pairs else "no pairs given"

    async def fast_agrees(self) -> str:
        if not isinstance(self.verifier, (FastVerifier, CacheableVerifier)):
            return "it has neither"
        for reference in self.references[:2]:
            # Pickled: its class may be in the verifier's own file, which a worker has yet to load.
            given = (self.name, self.options, self.folder, pickle.dumps(reference))
            verdict = await self.pool.verify(f"{__name__}:Agreement", {}, "", given)
            if verdict.outcome is not Outcome.CORRECT:
                raise _Broken(verdict.detail)
        return ""

    async def _judge(self, response: str, reference: Any) -> Judgement:
        return await self.pool.judge(
            self.name,
            self.options,
            response,
            reference,
            folder=self.folder,
            task=lambda: response_task(response, TASK),
        )

    async def _judge_group(self, group: Sequence[str], reference: Any) -> GroupJudgement:
        tasks = [response_task(response, TASK) for response in group]
        return await self.pool.judge_group(
            self.name, self.options, list(group), reference, folder=self.folder, tasks=lambda: tasks
        )


def _filled(group: Sequence[str], size: int) -> tuple[str, ...]:
    return (*group, *("42" for _ in range(size - len(group))))


def _by_gold(pairs: Pairs) -> list[tuple[object, list[str]]]:
    # Golds may be lists, which no dict takes as keys.
    found: list[tuple[object, list[str]]] = []
    for gold, text in pairs:
        texts = next((texts for known, texts in found if known == gold), None)
        if texts is None:
            found.append((gold, [text]))
        else:
            texts.append(text)
    return found


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
            given = text, gold, response_task(text, TASK)
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
