"""A pattern that the answer must match."""

import re

from verifiers.exact import TextAnswer, answer_text
from verifiers.options import read_bool, read_string
from verifiers.verdict import Verdict, correct, no_answer, wrong


class RegexVerifier:
    """The gold is a regular expression (Python's syntax). A pattern that backtracks without end is cut off by
    the pool."""

    def __init__(
        self,
        *,
        match: object = "full",
        source: object = "final_part",
        fallbacks: object = (),
        think: object = "optional",
        ignore_case: object = False,
        strip: object = True,
    ) -> None:
        self._match = read_string("regex", "match", match, allowed=("full", "search"))
        self._where = TextAnswer.from_options("regex", source, fallbacks, think)
        self._flags = re.IGNORECASE if read_bool("regex", "ignore_case", ignore_case) else 0
        self._strip = read_bool("regex", "strip", strip)

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
