"""Asynchronous reinforcement learning with verifiable rewards, on SGLang and Megatron-core.

    run = asyncrl.train("Qwen/Qwen3-0.6B", data=rows, verifier=my_function, steps=100, algorithm="dapo")

`train`, `resume`, `Run`, and the errors `InputError` and `RunFailed`: docs/python.md.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrl.errors import InputError, RunFailed
    from asyncrl.launch.python.run import Run
    from asyncrl.launch.python.train import resume, train

__all__ = ["InputError", "Run", "RunFailed", "resume", "train"]
_PLACES = {
    "InputError": "asyncrl.errors",
    "RunFailed": "asyncrl.errors",
    "Run": "asyncrl.launch.python.run",
    "resume": "asyncrl.launch.python.train",
    "train": "asyncrl.launch.python.train",
}


def __getattr__(name: str) -> Any:
    # On demand: each process of a run imports this package, and most need none of it.
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
