"""A verifier of your own: right is a whole number in the last \\boxed{}, equal to the answer of the row.

Rows of data/ name it: "verifier": "./verifier.py:BoxedNumber". To check it before a run:

    asyncrl verify --contract ./verifier.py:BoxedNumber
"""

from verifiers.extract import last_box
from verifiers.verdict import Outcome, Verdict


class BoxedNumber:
    def parse_reference(self, raw: object) -> int:
        """The answer of a row, read once. A ValueError refuses the row before the run starts."""
        if not isinstance(raw, (int, str)) or not str(raw).strip().isdecimal():
            raise ValueError(f"the answer is {raw!r}, expected a whole number such as 432")
        return int(raw)

    def verify(self, response: str, reference: int) -> Verdict:
        """Runs in a process that is killed when it is late. To raise is a fault, never a wrong answer."""
        box = last_box(response)
        if box is None:
            return Verdict(Outcome.NO_ANSWER, 0.0, detail="no \\boxed{}")
        is_right = box.strip().isdecimal() and int(box) == reference
        return Verdict(Outcome.CORRECT if is_right else Outcome.WRONG, float(is_right), extracted=box)
