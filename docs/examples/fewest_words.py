"""A verifier of groups to copy: of the responses that say the answer, those in fewer words score more."""

from verifiers.verdict import Outcome, Verdict, wrong


class FewestWords:
    def parse_reference(self, raw):
        if not isinstance(raw, str):
            raise ValueError(f"the answer is {raw!r}, expected a string")
        return raw

    def verify_group(self, responses, reference):  # asked once, when all responses to the task are there
        lengths = [len(text.split()) for text in responses if reference in text]
        return [self._verdict(text, lengths) if reference in text else wrong() for text in responses]

    def _verdict(self, text, lengths):
        length = len(text.split())
        num_longer = sum(other > length for other in lengths)
        return Verdict(Outcome.CORRECT, (1 + num_longer) / len(lengths), detail=f"{length} words")
