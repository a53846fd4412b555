"""The section `data`."""

from asyncrl.recipe.section import Section


class Data(Section):
    """Tasks: JSONL files, one task per row."""

    train: str
    """Rows {"prompt": text or chat messages, "answer": ..., "verifier": optional}."""
    heldout: str | None = None
    """Rows of the same form for evaluation, never trained on."""
    is_shuffled: bool = True
    """A new seeded permutation each epoch; false: the order of the file."""
