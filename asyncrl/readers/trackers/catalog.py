"""Which module a tracker is in, and whether its package is installed."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import cast

from asyncrl.errors import InputError
from asyncrl.readers.trackers.tracker import Open
from asyncrl.recipe import Tracker as Settings
from asyncrl.system.plugins import load_object


def check_trackers(trackers: Sequence[Settings]) -> None:
    """Raises InputError for a tracker whose package, or whose own function, is missing."""
    for settings in trackers:
        if not settings.is_built_in():
            find_tracker(settings)
        elif find_spec(settings.name) is None:
            raise InputError(
                f"trackers has {settings.name}, but the package {settings.name} is not installed. Install it "
                f"with `make setup TRACKERS=1`, or remove {settings.name} from trackers."
            )


def find_tracker(settings: Settings) -> Open:
    """The function that opens it. Raises InputError."""
    is_built_in = settings.is_built_in()
    target = f"asyncrl.readers.trackers.{settings.name}:open_tracker" if is_built_in else settings.name
    found = load_object(target)
    if not callable(found):
        raise InputError(
            f"trackers names {target}, which is {found!r}; expected a function that opens a tracker."
        )
    return cast(Open, found)


def check_opened(settings: Settings, tracker: object) -> None:
    """Raises InputError for what an own function returned that is no tracker."""
    calls = ("log", "note", "supersede", "close")
    missing = [name for name in calls if not callable(getattr(tracker, name, None))]
    run_id = getattr(tracker, "run_id", None)
    if missing or not isinstance(run_id, str):
        wrong = f"without {', '.join(missing)}" if missing else f"with the run_id {run_id!r}"
        raise InputError(
            f"trackers {settings.name} gave {tracker!r}, {wrong}; expected an object with log, note, "
            f"supersede and close, and a text as run_id (asyncrl.readers.trackers.tracker.Tracker)."
        )
