"""Waiting for descriptors with poll: select refuses numbers from 1024 on, and a caller with a thousand open
connections passes such ones on to its children."""

import select


def readable(*descriptors: int, timeout_seconds: float | None = None) -> list[int]:
    """Descriptors that have input or hung up; empty after `timeout_seconds`. None waits without end."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    ready = poll.poll(None if timeout_seconds is None else timeout_seconds * 1000)
    return [descriptor for descriptor, _ in ready]
