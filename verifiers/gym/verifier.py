"""The answer to a task of reasoning-gym, by the scorer of its dataset.

A score from `correct_at` on is CORRECT; what a lesser answer scores is shaping. A scorer may raise on what
the model wrote: that is WRONG if it gives the task's own answer a score, a FAULT if it raises there, too."""

import json
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from verifiers.extract import Fallback, Think, extract_answer, final_part, marked_answer
from verifiers.gym.datasets import CONDITIONS, installed_version, load_dataset, may_be_scored
from verifiers.gym.entries import read_entry
from verifiers.plugins import Bounds
from verifiers.verdict import Verdict, correct, no_answer, wrong
from verifiers.verifier import VerifierUnavailable

_OPEN, _CLOSE = "<answer>", "</answer>"


@dataclass(frozen=True)
class GymReference:
    """A task; texts, so that the pool may digest and cache it."""

    dataset: str
    config: str
    """JSON, keys sorted."""
    entry: str
    """JSON of `written_entry`."""


class GymVerifier:
    """The gold is {"gym": a dataset, "config": its configuration, "entry": the task}, as a source with `gym`
    makes it."""

    takes_any_gold = True

    def __init__(
        self,
        *,
        correct_at: Annotated[float, Bounds(0.001, 1)] = 1.0,
        partial_credit: Annotated[float, Bounds(0, 1)] = 1.0,
        source: Literal["marked", "final_part"] = "marked",
        fallbacks: tuple[Fallback, ...] = (),
        think: Think = "optional",
    ) -> None:
        self._correct_at = correct_at
        self._partial_credit = partial_credit
        self._source = source
        self._fallbacks = fallbacks
        self._think = think

    def parse_reference(self, raw: object) -> GymReference:
        match raw:
            case {"gym": str(dataset), "config": dict(config), "entry": dict(entry)}:
                text = json.dumps(entry, ensure_ascii=False)
                read_entry(text)
                return GymReference(dataset, json.dumps(config, sort_keys=True), text)
        raise ValueError(
            f"The gold is {str(raw)[:80]!r}, expected {{gym, config, entry}}: a row of a source with `gym`."
        )

    def check_machine(self) -> None:
        try:
            installed_version()
        except ValueError as error:
            raise VerifierUnavailable(str(error)) from None

    def preparation(self, reference: GymReference) -> Hashable | None:
        return reference.dataset, reference.config

    def prepare(self, what: tuple[str, str]) -> None:
        load_dataset(*what)

    def cache_key(self, response: str, reference: GymReference) -> Hashable | None:
        return self._answer(response)

    def verify(self, response: str, reference: GymReference) -> Verdict:
        answer, method, reason = self._answer(response)
        if answer is None:
            return no_answer(reason)
        shown = answer[:500]
        if not may_be_scored(reference.dataset, answer):
            return wrong(extracted=shown, detail="the answer is not a plain formula", method=method)
        try:
            score = _score(answer, reference)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # a scorer reads what the model wrote, whatever that is
            _score_own(reference)
            detail = f"the scorer raises {type(error).__name__} on this answer: {error}"
            return wrong(extracted=shown, detail=detail[:500], method=method)
        detail = f"{reference.dataset} scores it {score:g}"
        if score >= self._correct_at:
            return correct(extracted=shown, detail=detail, method=method)
        verdict = wrong(extracted=shown, detail=detail, method=method)
        return replace(verdict, shaping=self._partial_credit * score)

    def _answer(self, response: str) -> tuple[str | None, str, str]:
        """(answer, method, reason): what stands in the last <answer>, else in a box, else by the options."""
        text, reason = final_part(response, think=self._think)
        if text is None:
            return None, "", reason
        # Not by the fallback answer_tag: it takes asterisks and underscores off, which are part of a board.
        start, end = text.rfind(_OPEN), text.rfind(_CLOSE)
        if 0 <= start < end:
            inside = text[start + len(_OPEN) : end].strip()
            boxed = extract_answer(inside).answer if "\\boxed" in inside else None
            return (boxed or inside, "answer_tag", "") if inside else (None, "", "the <answer> is empty")
        found = extract_answer(text, think="ignore")
        if found.answer is not None:
            return found.answer, found.method, ""
        marked = marked_answer(text, self._fallbacks)
        if marked is not None:
            return *marked, ""
        whole = text.strip()
        if self._source == "final_part" and whole:
            return whole, "final_part", ""
        return None, "", "no <answer> that closes, and no \\boxed{}"


def own_response(reference: GymReference) -> str | None:
    """A response with the task's own answer; None where reasoning-gym knows none."""
    answer = read_entry(reference.entry)["answer"]
    return None if answer is None else f"{_OPEN}\n{answer}\n{_CLOSE}"


def _score(answer: str, reference: GymReference) -> float:
    """In [0, 1]. Raises what the scorer raises, and ValueError for another score."""
    # Scorers may change the entry.
    entry = read_entry(reference.entry)
    score = float(load_dataset(reference.dataset, reference.config).score_answer(answer, entry))
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"the score is {score!r}, expected a number in [0, 1]")
    condition = CONDITIONS.get(reference.dataset)
    is_met = score < 1.0 or condition is None or condition(answer, read_entry(reference.entry))
    return score if is_met else 0.0


def _score_own(reference: GymReference) -> Any:
    """Raises what the scorer raises on the task's own answer, or on none where it has none."""
    entry = read_entry(reference.entry)
    dataset = load_dataset(reference.dataset, reference.config)
    return float(dataset.score_answer(entry["answer"], entry))
