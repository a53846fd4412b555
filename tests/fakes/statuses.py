"""A status.json of a run that trains here and now."""

import os
import time
from typing import Any

from asyncrl.run.status import Status, this_host


def make_status(**keys: Any) -> Status:
    status: Status = {
        "time_seconds": time.time(),
        "state": "training",
        "pid": os.getpid(),
        "host": this_host(),
        "step": 3,
        "total_steps": 40,
        "waiting": {"trainer": "for rollouts: 14 of 16 groups ready", "rollouts": None},
        "queue": {"open": 5, "ready": 14, "taken": 16, "tokens_in_flight": 1234},
        "servers": [],
    }
    status.update(keys)  # type: ignore[typeddict-item]
    return status
