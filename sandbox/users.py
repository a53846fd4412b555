"""Users that root's programs run as: one of its own for each worker.

The kernel counts processes, and much else that it bounds, by user: with one user for all, one worker's
program could use up what the programs of the others need."""

import errno
import os
import socket
from pathlib import Path

NOBODY = 65534
_FIRST, _LAST = 61184, 65519
"""Kept free for users that exist for a while (systemd.io/UIDS-GIDS)."""


def is_mapped(uid_map: str, user: int) -> bool:
    """Whether a user namespace knows this user, by the text of its uid_map."""
    for line in uid_map.splitlines():
        inside, _, count = map(int, line.split())
        if inside <= user < inside + count:
            return True
    return False


def claim() -> tuple[int, socket.socket | None]:
    """(a user that no other worker has, a socket that keeps it while it is open); if the caller is not root,
    the caller and None. Where there is none left, or the namespace has no such users: NOBODY, shared."""
    if os.getuid() != 0:
        return os.getuid(), None
    try:
        uid_map = Path("/proc/self/uid_map").read_text()
    except OSError:
        return NOBODY, None
    # Each from another place: processes of a worker that was killed may still be ending as its user.
    count = _LAST - _FIRST + 1
    for user in (_FIRST + (os.getpid() + at) % count for at in range(count)):
        if not is_mapped(uid_map, user):
            break
        # An abstract name is free again when its owner has ended, however it ended.
        claimed = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claimed.bind(f"\0asyncrl-sandbox-user-{user}")
            return user, claimed
        except OSError as error:
            claimed.close()
            if error.errno != errno.EADDRINUSE:
                break
    return NOBODY, None
