"""Capacity of a server."""

from dataclasses import dataclass

SPARE_TOKENS = 8
"""Spare tokens of a cache: SGLang 0.5.23 takes no prompt that leaves fewer than 7."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """By the server's own word."""

    cache_tokens: int
    """Tokens in the key-value cache."""
    running_requests: int

    def holds(self, num_tokens: int) -> bool:
        """Whether a trajectory of `num_tokens` can be generated, and resumed at any place."""
        return num_tokens + SPARE_TOKENS <= self.cache_tokens
