"""Length shaping: a penalty that grows before the limit. Never part of the score."""

from dataclasses import replace

from verifiers.options import read_number, read_string
from verifiers.verdict import Outcome, Verdict


def soft_overlong(length: int, *, max_length: int, buffer: int) -> float:
    """DAPO's soft overlong punishment, in [-1, 0] (Yu et al. 2025, arXiv:2503.14476, eq. 13).

    0 up to max_length - buffer, then linear down to -1 at max_length, -1 beyond. Any unit of length."""
    if max_length <= 0 or not 0 <= buffer <= max_length:
        raise ValueError(
            f"max_length is {max_length} and buffer {buffer}, expected 0 <= buffer <= max_length "
            "and max_length above 0."
        )
    free = max_length - buffer
    if length <= free:
        return 0.0
    if length > max_length or buffer == 0:
        return -1.0 if length > max_length else 0.0
    return (free - length) / buffer


class LengthVerifier:
    """CORRECT when the response is not too long; the shaping is the soft overlong penalty. The gold is not
    used.

    Counts characters or words; the trainer, which knows the tokens, calls `soft_overlong` itself."""

    def __init__(
        self, *, max_length: object, buffer: object = 0, unit: object = "characters", factor: object = 1.0
    ) -> None:
        self._max = int(read_number("length", "max_length", max_length, least=1))
        self._buffer = int(read_number("length", "buffer", buffer, least=0, most=self._max))
        self._unit = read_string("length", "unit", unit, allowed=("characters", "words"))
        self._factor = read_number("length", "factor", factor, least=0)

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
