"""The section `view`."""

from typing import Annotated

from pydantic import Field

from asyncrl.recipe.sections.section import Count, Section

REFLECTION_WORDS = (
    *("wait", "mistake", "however", "but", "retry", "error", "verify", "wrong", "evaluate", "check"),
)
"""Words that DeepSeek-R1 counts over the training of R1-Zero (DeepSeek-AI 2025, Nature 645)."""
_Word = Annotated[str, Field(min_length=1, pattern=r"\S")]


class View(Section):
    """The page that shows a run."""

    groups_per_step: Count = 4
    """Groups per step whose importance ratio, entropy and advantage are kept for each token (0: none), the
    oldest new ones of the batch. 4 to 6 bytes per token; replay.keep_steps removes them with the tokens."""
    reflection_words: list[_Word] = list(REFLECTION_WORDS)
    """Words that are counted in each step's responses, whole and in any case: the metrics
    reflection_words_*. Inflected forms are words of their own. Default: those that DeepSeek-R1 counts. []:
    none."""
