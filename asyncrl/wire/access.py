"""Access to the processes of a run: only with its token.

Each start of a run makes a new one. It is in the run folder, readable by its owner alone, and reaches the
processes of the run by their environment, never by a command line or a log. A server that the user named is
shown the user's own key and never the token.
"""

import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from asyncrl.errors import InputError

TOKEN_VARIABLE = "ASYNCRL_TOKEN"
"""In the environment of each process of a run."""


def new_token() -> str:
    return secrets.token_urlsafe(32)


def own_token() -> str:
    """The token that this process was started with; empty where it was started by hand."""
    return os.environ.get(TOKEN_VARIABLE, "")


def bearer(key: str) -> dict[str, str]:
    """The header that shows `key`; none for an empty one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def is_shown(key: str, header: str | None) -> bool:
    """Whether an Authorization header shows `key`, compared in constant time."""
    kind, _, shown = (header or "").partition(" ")
    return kind.lower() == "bearer" and secrets.compare_digest(shown.encode(), key.encode())


def write_token(path: Path, token: str) -> None:
    """A file that its owner alone can read, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)


def external_key(variable: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The key of the servers that the user named, in the environment variable serving.api_key_variable; empty
    where there is none. Raises InputError when the variable is not set.
    """
    if variable is None:
        return ""
    if not (secret := environment.get(variable)):
        raise InputError(
            f"serving.api_key_variable is {variable}, but no such environment variable is set. Set it to the "
            f"key of the servers in serving.servers, or leave serving.api_key_variable out if they have none."
        )
    return secret


class Keys:
    """Which key each server is shown: the run's token to processes of the run, the user's to the others."""

    def __init__(self, token: str = "", *, external: str = "", own: Iterable[str] = ()) -> None:
        self.token = token
        self.external = external
        """Key of the servers that are not processes of the run; empty where they ask for none."""
        self._own = {_origin(url) for url in own}

    def add_own(self, url: str) -> None:
        self._own.add(_origin(url))

    def is_own(self, url: str) -> bool:
        return _origin(url) in self._own

    def of(self, url: str) -> str:
        return self.token if self.is_own(url) else self.external


def read_keys(token: str, variable: str | None) -> Keys:
    """Keys of a process of a run that has `token`. Raises InputError, as `external_key` does."""
    return Keys(token, external=external_key(variable))


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()
