"""Settings of a fleet, as far as they are not its parts."""

from dataclasses import dataclass

from asyncrl.model.unsampled import Unsampled
from asyncrl.serving.publication import INSTALL_SECONDS, Load, load_from_disk

SILENCE_SECONDS = 300.0
"""Longest silence of a server with requests, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    max_running_requests: int
    """Most requests that run at once on a server."""
    install_seconds: float = INSTALL_SECONDS
    """Longest wait for the answer to each request of an install: a server that hangs then is restarted."""
    silence_seconds: float = SILENCE_SECONDS
    """A server with requests from which nothing comes for longer is restarted."""
    longest_tokens: int = 0
    """Tokens of the longest prompt with its response: a server whose cache is smaller does not join."""
    interrupt: str = "continue"
    """rollout.interrupt, for requests that run during an install."""
    load: Load = load_from_disk
    """How a server that joins is given its weights."""
    float32_head: bool | None = None
    """Whether servers compute the output layer of a bfloat16 model in float32; None: not asked."""
    is_bitwise: bool | None = None
    """Whether servers compute by the trainer's kernels (model.bitwise_agreement); None: not asked."""
    unsampled: Unsampled | None = None
    """A server that never samples other tokens than these does not join, where they are given."""
    top_k: int | None = None
    """Tokens that a server must be able to tell as kept (rollout.top_k); None where it is not asked."""
    returns_routes: bool = False
    """Whether servers must say which experts each token took (algorithm.routing_replay)."""
