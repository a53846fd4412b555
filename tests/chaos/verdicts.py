"""The verifier of a chaos run with a tool: whether a call worked."""

from verifiers.verdict import Outcome, Verdict


class Called:
    def parse_reference(self, raw):
        return str(raw)

    def verify(self, response, reference, task):
        has_called = any(
            message["role"] == "tool" and not message["content"].startswith("Error")
            for messages in task.observations
            for message in messages
        )
        return Verdict(Outcome.CORRECT if has_called else Outcome.WRONG, float(has_called))
