"""Reward shaping that needs no verifier: plain floats, added to the reward. Raw correctness stays apart."""


def soft_overlong(num_tokens: int, *, limit_tokens: int, buffer_tokens: int) -> float:
    """0 up to limit - buffer, then falling linearly to -1 at the limit

    Source: DAPO's soft overlong punishment, Yu et al. 2025 (arXiv 2503.14476, eq. 13).
    Use: answers that are cut off for length: makes them a little shorter before they are lost.
    Fails: with a long buffer it punishes thinking; near the limit a right answer earns nothing.
    """
    over = num_tokens - (limit_tokens - buffer_tokens)
    return -min(1.0, max(0.0, over / buffer_tokens)) if buffer_tokens else 0.0
