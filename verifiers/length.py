"""Length shaping: a penalty that grows before the limit. Never part of the score."""

from dataclasses import replace
from typing import Annotated, Literal

from verifiers.options import Bounds
from verifiers.verdict import MAX_SHAPING, Outcome, Verdict


def soft_overlong(length: int, *, max_length: int, buffer: int) -> float:
    """0 up to max_length - buffer, then linearly to -1 at max_length, -1 beyond; in any unit

    Source: DAPO's soft overlong punishment, Yu et al. 2025 (arXiv 2503.14476, eq. 13).
    Use: answers that are cut off for length: makes them a little shorter before they are lost.
    Fails: with a long buffer it punishes thinking; near the limit a right answer earns nothing.
    """
    if length > max_length:
        return -1.0
    over = length - (max_length - buffer)
    return -over / buffer if over > 0 else 0.0


class LengthVerifier:
    """CORRECT when the response is not too long; shaping is the soft overlong penalty. Ignores the gold.

    Counts characters or words. In tokens, the recipe key algorithm.overlong.buffer_tokens does the same."""

    takes_any_gold = True

    def __init__(
        self,
        *,
        max_length: Annotated[int, Bounds(1)],
        buffer: Annotated[int, Bounds(0)] = 0,
        unit: Literal["characters", "words"] = "characters",
        factor: Annotated[float, Bounds(0, MAX_SHAPING)] = 1.0,
    ) -> None:
        if buffer > max_length:
            raise ValueError(
                f"Option 'buffer' of verifier 'length' is {buffer}, expected at most max_length "
                f"({max_length})."
            )
        self._max = max_length
        self._buffer = buffer
        self._unit = unit
        self._factor = factor

    def parse_reference(self, raw: object) -> None:
        return None

    def verify(self, response: str, reference: None) -> Verdict:
        length = len(response) if self._unit == "characters" else len(response.split())
        shaping = self._factor * soft_overlong(length, max_length=self._max, buffer=self._buffer)
        fits = length <= self._max
        verdict = Verdict(
            Outcome.CORRECT if fits else Outcome.WRONG,
            1.0 if fits else 0.0,
            detail=f"{length} {self._unit}, at most {self._max}",
        )
        return replace(verdict, shaping=shaping)

    def verify_fast(self, response: str, reference: None) -> Verdict | None:
        return self.verify(response, reference) if len(response) < 100_000 else None
