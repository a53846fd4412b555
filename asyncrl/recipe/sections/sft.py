"""The section `sft`."""

from typing import Literal

from asyncrl.recipe.sections.section import Positive, Section


class SFT(Section):
    """Supervised fine-tuning, `stage: sft`: the model imitates the rows of data.train. A row has chat
    messages (column messages), or a prompt and a response. The loss is the negative log-likelihood of the
    tokens that are learned, a mean over those of the whole batch."""

    rows_per_batch: Positive = 32
    """Rows of a step."""
    loss_on: Literal["response", "assistant"] = "assistant"
    """Which tokens of chat messages are learned; each turn with the token that ends it. `asyncrl prompt`
    shows them in color.
    response: the last message, which is the assistant's; all before it is context.
    assistant: every turn of the assistant that answers something."""
    too_long: Literal["refuse", "cut", "leave_out"] = "refuse"
    """Rows of more tokens than model.context_tokens.
    refuse: the first one ends the start.
    cut: what is beyond the limit is left off, and the row teaches no end.
    leave_out: they are counted and shown, and the others are used."""
