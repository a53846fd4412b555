"""The errors that cross component boundaries; everything else propagates as it is.

AsyncrlError
├── InputError            the user's recipe, data, model folder or machine: one sentence, exit code 2
├── ServerError           a rollout server refused, died or answered something unreadable
│   ├── RequestRefused    it answers, and refuses this request whenever it is asked
│   └── WeightMismatch    its weights are not the published ones
├── DiskError             a file of the run could not be written: no space, or no permission
├── Diverged              a gradient is not finite
├── RunFailed             a run that Python code started has failed
├── RankLost              another rank of the trainer does not answer any more
├── QueueError            a call that the state of the replay queue does not allow
│   └── Superseded        a request of a trainer that is gone: a later one came
└── StalenessBreach       a token is staler than max_staleness: the admission proof is broken
"""

import difflib
from collections.abc import Iterable


class AsyncrlError(Exception):
    """The root of what this project raises on purpose."""


class InputError(AsyncrlError, ValueError):
    """Something the user can correct. The message: what is wrong, the value, what was expected, the knob."""


class RunFailed(AsyncrlError):
    """A run that `asyncrl.train` started has failed; the message is its cause."""


class ServerError(AsyncrlError):
    """A rollout server failed one request; the trajectory it carried is not lost."""


class RequestRefused(ServerError):
    """A server that answers refuses a request for what it asks: asked again, it refuses it again."""


class WeightMismatch(ServerError):
    """The digests of a server's weights differ from the published ones; it must not serve."""


class DiskError(AsyncrlError):
    """The disk refuses a write. No restart helps; once there is room, the same command resumes."""

    EXIT_CODE = 3
    """Exit code of a trainer that ends with it."""


class Diverged(AsyncrlError, FloatingPointError):
    """A gradient is not finite; the same batch on the same weights would fail again."""

    EXIT_CODE = 4
    """Exit code of a trainer that ends with it."""


class RankLost(AsyncrlError):
    """Another rank of the trainer died or hangs. A restart of all ranks from the last checkpoint helps."""

    EXIT_CODE = 5
    """Exit code of a trainer that ends with it."""


class QueueError(AsyncrlError):
    """A call that the state of the queue does not allow, such as a take of a step long past."""


class Superseded(QueueError):
    """A request of the trainer was given up, because a later one came: its sender is gone."""


class StalenessBreach(AsyncrlError, AssertionError):
    """The staleness bound was broken despite admission control: a defect, never to be ignored."""


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """ " Did you mean NAME?" where one of `known` is almost `word`, in capitals or not, else `otherwise`."""
    names = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(word.casefold(), list(names), n=1)
    return f" Did you mean {names[near[0]]}?" if near else otherwise
