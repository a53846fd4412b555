"""The section `replay`."""

from typing import Annotated, Literal

from pydantic import Field

from asyncrl.recipe.markers import CHANGEABLE
from asyncrl.recipe.sections.section import Count, Positive, Section


class Replay(Section):
    """Which groups make a batch, and how long their tokens are kept."""

    order: Literal["admission", "strict_admission", "freshness", "signal"] = "admission"
    """Which ready groups a batch takes first, after those that max_staleness makes due.
    admission: the oldest.
    strict_admission: the oldest, waiting for stragglers; no length bias, but the trainer waits too.
    freshness: those with the newest tokens.
    signal: those with a gradient, largest variance of correctness first."""
    repeated_groups_per_batch: Count = 0
    """Previously trained groups added to each batch (0: none). rollout.max_staleness applies to them too."""
    max_uses: Annotated[int, Field(ge=2)] = 2
    """Maximum times a repeated group is trained, the first time included."""
    drops_no_signal: bool = False
    """Dynamic sampling: drops and replaces groups whose advantages are all zero by raw correctness; with most
    advantages, those whose trajectories are all equally correct."""
    max_dropped_in_a_row: Positive = 256
    """After this many groups without signal in a row the next one is trained anyway, so no run starves."""
    keep_steps: Annotated[Positive, CHANGEABLE] = 200
    """Steps before the last checkpoint whose tokens stay in the journal, for `asyncrl reproduce` and `view`;
    more if a kept checkpoint needs them. Older steps keep verdicts, versions and lengths."""
