"""Costs of a server's passes, as sums that add up over servers and steps.

A pass over n prompt tokens takes a + b n seconds, one of n requests that hold k tokens a + b n + c k: these
are the sums from which least squares finds a, b and c. `engine/hooks/pass_times.py` makes the server report
them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any, Self

STATE_KEY = "asyncrl_passes"
"""In each internal state of /server_info: "decode" and "prefill", each with the fields of its sums."""


@dataclass(frozen=True, slots=True)
class LineSums:
    """Sums over passes of one kind."""

    passes: float = 0.0
    """How many."""
    size: float = 0.0
    """Sum of n."""
    seconds: float = 0.0
    """Sum of s, the wall-clock time of a pass."""
    size_squared: float = 0.0
    """Sum of n n."""
    size_seconds: float = 0.0
    """Sum of n s."""

    @staticmethod
    def of_pass(size: float, seconds: float) -> "LineSums":
        return LineSums(1.0, size, seconds, size * size, size * seconds)

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def since(self, before: Self) -> Self:
        """The sums added since `before`."""
        return type(self)(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))

    def columns(self) -> dict[str, float]:
        """Columns of a step, as metrics.jsonl has them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DecodeSums(LineSums):
    """Sums over decode passes: also by what requests hold, as young requests are many and hold little."""

    held: float = 0.0
    """Sum of k, the tokens of its requests in the cache."""
    held_squared: float = 0.0
    """Sum of k k."""
    held_seconds: float = 0.0
    """Sum of k s."""
    size_held: float = 0.0
    """Sum of n k."""

    @classmethod
    def of_decode(cls, size: float, held: float, seconds: float) -> "DecodeSums":
        of_size = (1.0, size, seconds, size * size, size * seconds)
        return cls(*of_size, held, held * held, held * seconds, size * held)


@dataclass(frozen=True, slots=True)
class PassSums:
    decode: DecodeSums = DecodeSums()
    """By requests; of passes that followed another decode pass, which alone have a length of their own."""
    prefill: LineSums = LineSums()
    """By tokens that no cache held. Nothing decodes meanwhile."""

    @classmethod
    def read(cls, states: Sequence[Mapping[str, Any]]) -> "PassSums":
        """Reads a server's internal states. Raises KeyError, TypeError or ValueError for one without sums."""
        told = [state[STATE_KEY] for state in states]
        return cls(
            sum((DecodeSums(*map(float, each["decode"])) for each in told), DecodeSums()),
            sum((LineSums(*map(float, each["prefill"])) for each in told), LineSums()),
        )

    def __add__(self, other: "PassSums") -> "PassSums":
        return PassSums(self.decode + other.decode, self.prefill + other.prefill)

    def state(self) -> dict[str, dict[str, list[float]]]:
        """The sums as `read` reads them, to add to an internal state."""
        kinds = {"decode": self.decode, "prefill": self.prefill}
        return {STATE_KEY: {kind: list(astuple(sums)) for kind, sums in kinds.items()}}

    def num_passes(self) -> float:
        return self.decode.passes + self.prefill.passes

    def since(self, before: "PassSums") -> "PassSums":
        """The sums added since `before`."""
        return PassSums(self.decode.since(before.decode), self.prefill.since(before.prefill))
