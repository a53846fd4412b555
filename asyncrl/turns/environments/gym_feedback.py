"""Tasks of reasoning-gym in several tries: after a wrong answer the model reads its score and tries again."""

from collections.abc import Mapping
from typing import Annotated, Any

from asyncrl.turns.environment import End, Observation, Recovery
from verifiers.extract import Think
from verifiers.gym import GymReference, GymVerifier, import_package
from verifiers.plugins import Bounds
from verifiers.verdict import Outcome


class GymFeedback:
    """Rows are those of a source with `gym`. The answer is read as the verifier `gym` reads it."""

    recovery = Recovery.REPLAYABLE

    def __init__(
        self,
        *,
        num_tries: Annotated[int, Bounds(1)] = 3,
        correct_at: Annotated[float, Bounds(0.001, 1)] = 1.0,
        think: Think = "optional",
    ) -> None:
        self._num_tries = num_tries
        self._num_left = num_tries
        self._verifier = GymVerifier(correct_at=correct_at, think=think)
        self._reference: GymReference | None = None

    @staticmethod
    def prepare() -> None:
        """Imports the package, which takes seconds, for all trajectories."""
        import_package()

    def start(self, row: Mapping[str, Any]) -> None:
        self._reference = self._verifier.parse_reference(row.get("answer"))
        self._num_left = self._num_tries

    def step(self, text: str) -> Observation | End:
        assert self._reference is not None
        verdict = self._verifier.verify(text, self._reference)
        self._num_left -= 1
        if verdict.outcome is Outcome.CORRECT:
            return End(1.0, verdict.detail, verdict.extracted)
        if not self._num_left:
            return End(0.0, verdict.detail, verdict.extracted)
        left = "one try" if self._num_left == 1 else f"{self._num_left} tries"
        if verdict.outcome is Outcome.NO_ANSWER:
            said = "No answer was found. Write it as <answer>...</answer>."
        else:
            said = f"Your answer scores {verdict.shaping:g} of 1."
        return Observation(f"{said} You have {left} left.", reward=verdict.shaping)
