"""The errors that cross a boundary of this project; everything else propagates as it is.

AsyncrlError
├── InputError            the user's recipe, data, model folder or machine: exit code 2, one clear sentence
├── ServerError           a rollout server refused, died or answered what we cannot read
│   ├── ServerSilent      a stream brought nothing for too long: the server hangs
│   └── WeightMismatch    a server's weights are not the ones that were published
├── DiskError             a file of the run could not be written: there is no room, or no permission
├── Diverged              a gradient is no number any more: the recipe trains into the void
├── QueueError            the replay queue was asked for something its states do not allow
└── StalenessBreach       a token is older than max_staleness: the admission proof does not hold, stop
"""


class AsyncrlError(Exception):
    """The root: catching it catches what this project raises on purpose and nothing else."""


class InputError(AsyncrlError, ValueError):
    """Something the user can correct. The message: what was wrong, the value, what was expected, the knob."""


class ServerError(AsyncrlError):
    """A rollout server failed one request; the trajectory it carried is not lost."""


class ServerSilent(ServerError):
    """A server accepted a request and then said nothing for too long, whatever its health check answers."""


class WeightMismatch(ServerError):
    """Digests of a server's loaded weights differ from the published ones; it must not serve."""


class DiskError(AsyncrlError):
    """The disk refuses: no restart helps; the user makes room, and the same command resumes."""

    EXIT_CODE = 3
    """Of a trainer that ends with it."""


class Diverged(AsyncrlError, FloatingPointError):
    """A gradient is not finite. The same batch on the same weights would fail again."""

    EXIT_CODE = 4
    """Of a trainer that ends with it."""


class QueueError(AsyncrlError):
    """A call that the state of the queue does not allow, such as a take of a step that is long past."""


class StalenessBreach(AsyncrlError, AssertionError):
    """The staleness bound was broken in spite of admission control: a defect, never a condition to ignore."""
