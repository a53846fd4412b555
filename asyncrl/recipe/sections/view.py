"""The section `view`."""

from asyncrl.recipe.sections.section import Count, Section


class View(Section):
    """The page that shows a run."""

    groups_per_step: Count = 4
    """Groups per step whose importance ratio, entropy and advantage are kept for each token (0: none), the
    oldest new ones of the batch. 4 to 6 bytes per token; replay.keep_steps removes them with the tokens."""
