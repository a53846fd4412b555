"""The structure of a response: one finished think block, one answer, nothing it should not hold."""

import re
from typing import Annotated

from verifiers.extract import last_box
from verifiers.options import Bounds
from verifiers.verdict import Verdict, correct, no_answer, wrong

_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,30}")


class FormatVerifier:
    """CORRECT when the response is exactly the wanted blocks, each once, in order, with nothing around them.

    The default: `<think>...</think>`, then an answer with one \\boxed{}. The gold is not used."""

    takes_any_gold = True

    def __init__(
        self,
        *,
        tags: tuple[str, ...] = ("think",),
        opened_by_prompt: bool = True,
        require_box: bool = True,
        min_think_characters: Annotated[float, Bounds(0)] = 0,
    ) -> None:
        self._tags = tags
        for tag in self._tags:
            if not _TAG.fullmatch(tag):
                raise ValueError(
                    f"Option 'tags' of verifier 'format' holds {tag!r}, expected a name such as 'think'."
                )
        self._opened_by_prompt = opened_by_prompt
        self._require_box = require_box
        self._least = min_think_characters

    def parse_reference(self, raw: object) -> None:
        return None

    def verify(self, response: str, reference: None) -> Verdict:
        problem, rest, first = self._blocks(response)
        if problem:
            return wrong(detail=problem)
        if len(first.strip()) < self._least:
            return wrong(
                detail=f"the first block holds {len(first.strip())} characters, expected {self._least:g}"
            )
        if not self._require_box:
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
        for position, tag in enumerate(self._tags):
            opening, closing = f"<{tag}>", f"</{tag}>"
            if response.count(closing) != 1:
                return f"{closing} stands {response.count(closing)} times, expected once", "", ""
            if response.count(opening) > 1:
                return f"{opening} stands {response.count(opening)} times, expected once", "", ""
            start = rest.find(opening)
            if start < 0 and not (position == 0 and self._opened_by_prompt and response.count(opening) == 0):
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
