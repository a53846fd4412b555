"""The section `trackers`: a list."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, model_validator

from asyncrl.errors import did_you_mean
from asyncrl.recipe.markers import OBJECT
from asyncrl.recipe.sections.section import Section

BUILT_IN = {
    "tensorboard": (),
    "wandb": ("project", "entity", "mode", "tags"),
    "mlflow": ("project", "uri", "tags"),
    "trackio": ("project", "tags"),
}
"""Name -> the settings that it has."""
_PLUGIN = re.compile(r"[^:\n]+:[A-Za-z_]\w*")
DEFAULT_PROJECT = "asyncrl"


class Tracker(Section):
    """One tracker. A name alone is a mapping with that name."""

    name: Annotated[str, OBJECT]
    """tensorboard: event files in RUN/trackers/tensorboard.
    wandb: Weights & Biases; WANDB_API_KEY or `wandb login` names the account.
    mlflow: an MLflow server or store.
    trackio: its database on this machine, as `trackio show` reads it.
    Or your own function that opens one: "package.module:function" or "./file.py:function"."""
    project: str | None = None
    """Project name (wandb, trackio) or experiment name (mlflow). Default: asyncrl. The run is named after its
    recipe."""
    entity: str | None = None
    """User or team of wandb. Default: the one that is logged in."""
    mode: Literal["online", "offline"] = "online"
    """Whether rows are sent during the run (wandb).
    online: they are sent as they come.
    offline: they stay in RUN/trackers/wandb, for `wandb sync`."""
    uri: str | None = None
    """Server or store (mlflow). Default: MLFLOW_TRACKING_URI, else RUN/trackers/mlflow.db."""
    tags: list[str] = []
    """Tags of the run (wandb, mlflow, trackio)."""
    options: Annotated[dict[str, Any], OBJECT] = {}
    """Settings of your own function."""

    def is_built_in(self) -> bool:
        return self.name in BUILT_IN

    def label(self) -> str:
        """Name of its files."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", self.name.rpartition("/")[2])

    @model_validator(mode="after")
    def _check(self) -> "Tracker":
        if not self.is_built_in() and not _PLUGIN.fullmatch(self.name):
            raise ValueError(
                f'trackers has "{self.name}", expected one of {", ".join(BUILT_IN)}, or your own '
                f'function as "package.module:function" or "./file.py:function".'
                f"{did_you_mean(self.name, BUILT_IN)}"
            )
        known = BUILT_IN.get(self.name, ("options",))
        for key in sorted(self.model_fields_set - {"name", *known}):
            # A resolved recipe names every key.
            if getattr(self, key) != Tracker.model_fields[key].default:
                its = f"It has {', '.join(known)}." if known else "It has none."
                raise ValueError(f'trackers: "{self.name}" has no setting {key}. {its} Remove {key}.')
        return self


def _from_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _check_names(trackers: list[Tracker]) -> list[Tracker]:
    labels = [tracker.label() for tracker in trackers]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f'trackers names "{label}" twice. Keep one of them.')
    return trackers


Trackers = Annotated[
    list[Annotated[Tracker, BeforeValidator(_from_name)]],
    AfterValidator(_check_names),
]
