"""A pattern that the answer must match."""

import re
from typing import Literal

from verifiers.exact import Source, TextAnswer, answer_text
from verifiers.extract import Fallback, Think
from verifiers.verdict import Verdict, correct, no_answer, wrong


class RegexVerifier:
    """The gold is a regular expression (Python's syntax). A pattern that backtracks without end is cut off by
    the pool."""

    def __init__(
        self,
        *,
        match: Literal["full", "search"] = "full",
        source: Source = "final_part",
        fallbacks: tuple[Fallback, ...] = (),
        think: Think = "optional",
        ignore_case: bool = False,
        strip: bool = True,
    ) -> None:
        self._match = match
        self._where = TextAnswer(source, fallbacks, think)
        self._flags = re.IGNORECASE if ignore_case else 0
        self._strip = strip

    def parse_reference(self, raw: object) -> str:
        if not isinstance(raw, str) or not raw:
            raise ValueError(f"The gold answer is {raw!r}, expected a regular expression.")
        try:
            re.compile(raw, self._flags)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"The gold answer {raw!r} is not a regular expression: {error}.") from error
        return raw

    def verify(self, response: str, reference: str) -> Verdict:
        answer, method, reason = answer_text(response, self._where)
        if answer is None:
            return no_answer(reason)
        if self._strip:
            answer = answer.strip()
        pattern = re.compile(reference, self._flags)
        found = pattern.fullmatch(answer) if self._match == "full" else pattern.search(answer)
        if found is None:
            return wrong(extracted=answer[:500], detail="the pattern does not match", method=method)
        return correct(extracted=found.group()[:500], detail="the pattern matches", method=method)
