"""The parts of the acceptance, in the order in which they run, each with its time limit.

A machine may be lent for minutes: what is wanted most comes first, a whole run and its throughput. Then the
kernels, which explain what failed before; then what needs no server, and what does. The first server compiles
kernels, and later ones find them compiled.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    limit_seconds: float
    """On a GPU; a rehearsal on a CPU has as long as its machine needs."""
    about: str
    gpu_only: bool = False


PIECE_SECONDS = 540.0
"""Limit of a piece of the check, where a machine runs a command for ten minutes at most."""
PARTS = (
    Part("real", 360, "a run of a real model, or of random weights of its size"),
    Part("throughput", 180, "tokens per second, MFU, memory of steps of Qwen3 0.6 B", gpu_only=True),
    Part("kernels", 240, "tests marked gpu: kernels, log-probs, gradients, checkpoints"),
    Part("kill", 120, "a trainer rank is killed, and resumes to the same losses"),
    Part("engine", 240, "log-probs of a server with CUDA graphs and radix cache, publishes under load"),
    Part("handover", 200, "trainer and server share a GPU, which changes hands at every step"),
)


def pieces() -> list[list[Part]]:
    """All parts in their order, as many in each piece as PIECE_SECONDS allow."""
    found: list[list[Part]] = []
    for part in PARTS:
        if found and 60 * minutes_of(found[-1]) + part.limit_seconds <= PIECE_SECONDS:
            found[-1].append(part)
        else:
            found.append([part])
    return found


def minutes_of(parts: Sequence[Part]) -> float:
    """Sum of the limits of all `parts`."""
    return sum(part.limit_seconds for part in parts) / 60
