"""The least environment, for what costs time besides it."""

from asyncrl.turns import Observation


class Echo:
    """Answers a turn with it."""

    def start(self, row: object) -> None:
        return None

    def step(self, text: str) -> Observation:
        return Observation(text)
