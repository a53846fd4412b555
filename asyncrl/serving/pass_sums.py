"""What a server's passes say of their costs, as sums that add up over servers and steps.

A pass of n requests, or over n prompt tokens, takes a + b n seconds: the sums are those from which least
squares finds a and b. `asyncrl.serving.engine.pass_times` makes the server tell them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, TypedDict

STATE_KEY = "asyncrl_passes"
"""In each internal state of /server_info: "decode" and "prefill", each with the fields of `LineSums`."""


class LineColumns(TypedDict):
    """Of a step, as metrics.jsonl has them."""

    passes: float
    size: float
    seconds: float
    size_squared: float
    size_seconds: float


@dataclass(frozen=True, slots=True)
class LineSums:
    """Over passes of one kind."""

    passes: float = 0.0
    """How many."""
    size: float = 0.0
    """Of n."""
    seconds: float = 0.0
    """Of s, the wall-clock time of a pass."""
    size_squared: float = 0.0
    """Of n n."""
    size_seconds: float = 0.0
    """Of n s."""

    @classmethod
    def of_pass(cls, size: float, seconds: float) -> "LineSums":
        return cls(1.0, size, seconds, size * size, size * seconds)

    def __add__(self, other: "LineSums") -> "LineSums":
        return LineSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def since(self, before: "LineSums") -> "LineSums":
        """What was added since."""
        return LineSums(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))

    def columns(self) -> LineColumns:
        return {
            "passes": self.passes,
            "size": self.size,
            "seconds": self.seconds,
            "size_squared": self.size_squared,
            "size_seconds": self.size_seconds,
        }


@dataclass(frozen=True, slots=True)
class PassSums:
    decode: LineSums = LineSums()
    """By requests; of passes that followed another decode pass, which alone have a length of their own."""
    prefill: LineSums = LineSums()
    """By tokens that no cache held. Nothing decodes meanwhile."""

    @classmethod
    def read(cls, states: Sequence[Mapping[str, Any]]) -> "PassSums":
        """Of a server's internal states. Raises KeyError, TypeError or ValueError for one without sums."""
        kinds = [
            [LineSums(*map(float, state[STATE_KEY][kind])) for state in states]
            for kind in ("decode", "prefill")
        ]
        return cls(*(sum(kind, LineSums()) for kind in kinds))

    def __add__(self, other: "PassSums") -> "PassSums":
        return PassSums(self.decode + other.decode, self.prefill + other.prefill)

    def state(self) -> dict[str, dict[str, list[float]]]:
        """What `read` reads, to add to an internal state."""
        kinds = {"decode": self.decode, "prefill": self.prefill}
        return {STATE_KEY: {kind: list(astuple(sums)) for kind, sums in kinds.items()}}

    def num_passes(self) -> float:
        return self.decode.passes + self.prefill.passes

    def since(self, before: "PassSums") -> "PassSums":
        """What was added since."""
        return PassSums(self.decode.since(before.decode), self.prefill.since(before.prefill))
