"""Which module a tracker is in, and whether its package is installed."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import cast

from asyncrl.errors import InputError
from asyncrl.plugins import load_object
from asyncrl.recipe import Tracker as Settings
from asyncrl.trackers.tracker import Open


def check_trackers(trackers: Sequence[Settings]) -> None:
    """Raises InputError for a tracker whose package, or whose own function, is missing."""
    for settings in trackers:
        if not settings.is_built_in():
            load_object(settings.name)
        elif find_spec(settings.name) is None:
            raise InputError(
                f"trackers has {settings.name}, but the package {settings.name} is not installed. Install it "
                f"with `make setup TRACKERS=1`, or remove {settings.name} from trackers."
            )


def find_tracker(settings: Settings) -> Open:
    """The function that opens it. Raises InputError."""
    is_built_in = settings.is_built_in()
    target = f"asyncrl.trackers.{settings.name}:open_tracker" if is_built_in else settings.name
    return cast(Open, load_object(target))
