"""The columns of a step that mean something where rows are learned: nothing is generated, graded or stale."""

import math
from typing import Any

_KEPT = (
    *("step", "loss", "entropy", "grad_norm", "learning_rate", "optimizer_steps"),
    *("num_tokens", "num_packed_tokens", "num_sequences", "response_tokens_mean", "response_tokens_max"),
    *("step_seconds", "wait_seconds", "train_seconds", "publish_seconds", "checkpoint_seconds"),
    *("tokens_per_second", "model_flops", "mfu", "trainer_idle_share"),
    *("spike_norm", "spike_times", "spike_share", "spike_row"),
)
_PREFIXES = ("heldout_", "dpo_")


def row_columns(row: dict[str, Any]) -> dict[str, Any]:
    """Those of a step's columns; with `loss`, its `perplexity`."""
    found = {name: value for name, value in row.items() if name in _KEPT or name.startswith(_PREFIXES)}
    loss = found.get("loss")
    return found if loss is None else {**found, "perplexity": math.exp(min(loss, 700.0))}
