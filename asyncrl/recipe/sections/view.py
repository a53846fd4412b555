"""The section `view`."""

from typing import Annotated

from pydantic import Field

from asyncrl.recipe.sections.section import Count, Section


class View(Section):
    """The page that shows a run."""

    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port of the page that is served while the run trains, to this machine alone (0: any free one). Default:
    no page. It shows all runs of the folder. Where the port is taken, the run warns and trains without."""
    groups_per_step: Count = 4
    """Groups per step whose importance ratio, entropy and advantage are kept for each token (0: none), the
    oldest new ones of the batch. 4 to 6 bytes per token; replay.keep_steps removes them with the tokens."""
