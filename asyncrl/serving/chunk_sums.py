"""What chunks of tokens say of a decode step's cost, as sums that add up over chunks, servers and steps.

A chunk of k tokens that came s seconds after the one before it, while n requests ran on the server on
average, says that a decode step of n requests took s / k. Both differ far more from chunk to chunk than the
mean number of requests does from step to step, which often cannot tell its fixed cost from that per request.
"""

from dataclasses import dataclass
from typing import TypedDict


class ChunkColumns(TypedDict):
    """Of a step, as metrics.jsonl has them."""

    tokens: float
    seconds: float
    requests: float
    """Over `tokens`: how many ran while a token was made."""


@dataclass(frozen=True, slots=True)
class ChunkSums:
    """Of every chunk but the first of each request, which waited for its prompt as well."""

    tokens: float = 0.0
    """Of k."""
    seconds: float = 0.0
    """Of s."""
    requests: float = 0.0
    """Of k n."""

    def __add__(self, other: "ChunkSums") -> "ChunkSums":
        return ChunkSums(
            self.tokens + other.tokens, self.seconds + other.seconds, self.requests + other.requests
        )

    def columns_since(self, before: "ChunkSums") -> ChunkColumns:
        """What was added since; nothing where a server left, and took its sums along."""
        if self.tokens < before.tokens:
            return {"tokens": 0.0, "seconds": 0.0, "requests": 0.0}
        return {
            "tokens": self.tokens - before.tokens,
            "seconds": self.seconds - before.seconds,
            "requests": self.requests - before.requests,
        }
