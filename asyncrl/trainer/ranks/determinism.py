"""trainer.deterministic: the same batches on the same weights and layout give the same bits on a GPU.

torch takes deterministic algorithms and raises where it has none; cuBLAS, NCCL and Transformer Engine read
variables. A CPU is deterministic as it is; there this only forbids what a GPU could not repeat.
"""

import os

import torch

VARIABLES = {
    # Of the workspaces that cuBLAS may use, those with which a product is always split in one way.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Else NCCL chooses by measured times in which order it sums.
    "NCCL_ALGO": "Ring",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
}
TOLERANCE = 0.02
"""Relative difference allowed between two computations on a GPU without `trainer.deterministic`, whose
threads set the order of its sums. An estimate; a step amplifies the differences left by the one before it."""
SMALLEST = 1e-3
"""Differences below it are none: of numbers near zero, such as a mean loss, rounding is the larger part."""
EXACT = ("num_", "learning_rate", "critic_learning_rate")
"""Beginnings of the names of what is counted or set, not summed up."""


def make_deterministic() -> None:
    """Before this process first uses a GPU."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    torch.use_deterministic_algorithms(True)
    # Fills each new tensor with NaN: a search for defects, at a pass over memory each.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def is_exact(*, deterministic: bool) -> bool:
    """Whether this process computes the same bits twice."""
    return deterministic or not torch.cuda.is_available()


def is_same(name: str, recorded: float | None, again: float | None, *, exactly: bool) -> bool:
    """Whether a metric of a step is the recorded one, where None stands for a number that is not finite."""
    if recorded == again:
        return True
    if exactly or name.startswith(EXACT) or recorded is None or again is None:
        return False
    return abs(recorded - again) <= max(SMALLEST, TOLERANCE * abs(recorded))
