"""The parts of the acceptance, in the order in which they run, each with its time limit.

The kernels come first: whatever fails there explains what fails later. Then what needs no server. The first
server compiles kernels, so it is the smallest one, and later servers find them compiled. The real run is the
last of those that decide; throughput is a figure alone.
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


PARTS = (
    Part("kernels", 240, "tests marked gpu: kernels, log-probs, gradients, checkpoints"),
    Part("kill", 120, "a trainer rank is killed, and resumes to the same losses"),
    Part("engine", 240, "log-probs of a server with CUDA graphs and radix cache, publishes under load"),
    Part("handover", 200, "trainer and server share a GPU, which changes hands at every step"),
    Part("real", 300, "a run of a real model, or of random weights of its size"),
    Part("throughput", 180, "tokens per second, MFU, memory of steps of Qwen3 0.6 B", gpu_only=True),
)


def minutes_of(parts: Sequence[Part]) -> float:
    """Sum of the limits of all `parts`."""
    return sum(part.limit_seconds for part in parts) / 60
