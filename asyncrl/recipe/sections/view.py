"""The section `view`."""

from typing import Annotated

from pydantic import Field

from asyncrl.recipe.sections.section import Count, Section


class View(Section):
    """The page that shows a run."""

    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port of the page that is served during the run, to this machine only (0: any free one). It shows all
    runs of the folder. If the port is taken, the run warns and trains without a page. Default: no page."""
    groups_per_step: Count = 4
    """Groups per step whose importance ratio, entropy and advantage are kept for each token (0: none), the
    oldest new ones of the batch. 4 to 6 bytes per token; replay.keep_steps removes them with the tokens."""
