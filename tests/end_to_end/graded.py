"""A user's verifier: rows that are always solved, rows that never are, and rows that chance decides."""

from verifiers.verdict import Outcome, Verdict


class Graded:
    def parse_reference(self, raw: object) -> str:
        if raw not in ("always", "never", "digit"):
            raise ValueError(f"the answer is {raw!r}, expected always, never or digit")
        return str(raw)

    def verify(self, response: str, reference: str) -> Verdict:
        has_digit = any(character.isdigit() for character in response[:1])
        if reference == "always" or (reference == "digit" and has_digit):
            return Verdict(Outcome.CORRECT, 1.0, extracted=response)
        return Verdict(Outcome.WRONG, 0.0, extracted=response)
