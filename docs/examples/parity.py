"""A verifier to copy: the answer is the last word, "even" or "odd"."""

from verifiers.verdict import Outcome, Verdict


class Parity:
    def parse_reference(self, raw):  # bad gold fails at load, with file and line
        if raw not in ("even", "odd"):
            raise ValueError(f"the answer is {raw!r}, expected 'even' or 'odd'")
        return raw

    def verify(self, response, reference):  # runs in a worker that is killed when it is late
        said = (response.split() or [""])[-1]
        right = said == reference
        return Verdict(Outcome.CORRECT if right else Outcome.WRONG, float(right), extracted=said)
