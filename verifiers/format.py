"""The outside of a response: its structure (one finished think block, one answer, nothing else) and its
length, whose penalty grows before the limit and is never part of the score."""

import re
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from verifiers.extract import last_box
from verifiers.plugins import Bounds
from verifiers.verdict import MAX_SHAPING, Outcome, Verdict, correct, no_answer, wrong

_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,30}")


@dataclass(frozen=True, kw_only=True)
class FormatVerifier:
    """CORRECT when the response is exactly the wanted blocks, each once, in order, with nothing around them.

    The default: `<think>...</think>`, then an answer with one \\boxed{}. The gold is not used."""

    takes_any_gold = True

    tags: tuple[str, ...] = ("think",)
    opened_by_prompt: bool = True
    require_box: bool = True
    min_think_characters: Annotated[float, Bounds(0)] = 0

    def __post_init__(self) -> None:
        for tag in self.tags:
            if not _TAG.fullmatch(tag):
                raise ValueError(
                    f"Option 'tags' of verifier 'format' holds {tag!r}, expected a name such as 'think'."
                )

    def parse_reference(self, raw: object) -> None:
        return None

    def verify(self, response: str, reference: None) -> Verdict:
        problem, rest, first = self._blocks(response)
        if problem:
            return wrong(detail=problem)
        num = len(first.strip())
        if num < self.min_think_characters:
            return wrong(
                detail=f"the first block holds {num} characters, expected {self.min_think_characters:g}"
            )
        if not self.require_box:
            return correct(detail="well formed")
        box = last_box(rest)
        if box is None or not box.strip():
            return no_answer("no \\boxed{} with an answer after the last block")
        if rest.count("\\boxed") + rest.count("\\fbox") != 1:
            return wrong(extracted=box[:500], detail="more than one box in the answer")
        return correct(extracted=box[:500], detail="well formed", method="boxed")

    def verify_fast(self, response: str, reference: None) -> Verdict | None:
        return self.verify(response, reference) if len(response) < 20_000 else None

    def _blocks(self, response: str) -> tuple[str, str, str]:
        """(problem or "", what follows the last block, the content of the first block)."""
        rest, first = response, ""
        for position, tag in enumerate(self.tags):
            opening, closing = f"<{tag}>", f"</{tag}>"
            if response.count(closing) != 1:
                return f"{closing} stands {response.count(closing)} times, expected once", "", ""
            if response.count(opening) > 1:
                return f"{opening} stands {response.count(opening)} times, expected once", "", ""
            start = rest.find(opening)
            if start < 0 and not (position == 0 and self.opened_by_prompt and response.count(opening) == 0):
                return f"{opening} is missing or out of order", "", ""
            end = rest.find(closing)
            if end < start or end < 0:
                return f"{closing} stands before {opening}", "", ""
            if start > 0 and rest[:start].strip():
                return f"there is text before {opening}", "", ""
            content = rest[start + len(opening) if start >= 0 else 0 : end]
            first = content if position == 0 else first
            rest = rest[end + len(closing) :]
        return "", rest, first


def soft_overlong(length: int, *, max_length: int, buffer: int) -> float:
    """0 up to max_length - buffer, then linearly to -1 at max_length, -1 beyond; in any unit

    Source: DAPO's soft overlong punishment, Yu et al. 2025 (arXiv 2503.14476, eq. 13).
    Use: answers that are cut off for length: makes them a little shorter before they are lost.
    Fails: with a long buffer it punishes thinking; near the limit a right answer earns nothing.
    """
    if length > max_length:
        return -1.0
    over = length - (max_length - buffer)
    return -over / buffer if over > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class LengthVerifier:
    """CORRECT when the response is not too long; shaping is the soft overlong penalty. Ignores the gold.

    Counts characters or words. In tokens, the recipe key algorithm.overlong.buffer_tokens does the same."""

    takes_any_gold = True

    max_length: Annotated[int, Bounds(1)]
    buffer: Annotated[int, Bounds(0)] = 0
    unit: Literal["characters", "words"] = "characters"
    factor: Annotated[float, Bounds(0, MAX_SHAPING)] = 1.0

    def __post_init__(self) -> None:
        if self.buffer > self.max_length:
            raise ValueError(
                f"Option 'buffer' of verifier 'length' is {self.buffer}, expected at most max_length "
                f"({self.max_length})."
            )

    def parse_reference(self, raw: object) -> None:
        return None

    def verify(self, response: str, reference: None) -> Verdict:
        length = len(response) if self.unit == "characters" else len(response.split())
        shaping = self.factor * soft_overlong(length, max_length=self.max_length, buffer=self.buffer)
        fits = length <= self.max_length
        verdict = Verdict(
            Outcome.CORRECT if fits else Outcome.WRONG,
            1.0 if fits else 0.0,
            detail=f"{length} {self.unit}, at most {self.max_length}",
        )
        return replace(verdict, shaping=shaping)

    def verify_fast(self, response: str, reference: None) -> Verdict | None:
        return self.verify(response, reference) if len(response) < 100_000 else None
