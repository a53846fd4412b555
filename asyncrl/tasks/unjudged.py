"""In place of the verifier of rows that nothing judges: a teacher alone says what their responses are
worth."""

from asyncrl.records import VerifierSpec
from verifiers.verdict import Verdict

NO_VERIFIER = VerifierSpec("(none)")
"""No name of a verifier that a row or a recipe could give."""


class Unjudged:
    """Takes any answer for a gold, and none."""

    takes_any_gold = True

    def parse_reference(self, raw: object) -> None:
        return None

    def verify(self, response: str, reference: object) -> Verdict:
        raise AssertionError("a response that nothing judges was given to a verifier")
