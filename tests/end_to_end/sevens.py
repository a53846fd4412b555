"""A user's verifier: the score is the share of sevens in the response. Learned from nothing in seconds."""

from verifiers.verdict import Outcome, Verdict


class Sevens:
    def parse_reference(self, raw: object) -> str:
        if raw != "7":
            raise ValueError(f"the answer is {raw!r}, expected '7'")
        return "7"

    def verify(self, response: str, reference: str) -> Verdict:
        if not response:
            return Verdict(Outcome.NO_ANSWER, 0.0)
        share = response.count(reference) / len(response)
        return Verdict(Outcome.CORRECT if share > 0.9 else Outcome.WRONG, share, extracted=response)
