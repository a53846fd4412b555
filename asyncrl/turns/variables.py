"""Environment variables that reach the user's programs of a run: neither tokens nor keys."""

from collections.abc import Mapping

_KEPT = frozenset("LANG LANGUAGE TZ LD_LIBRARY_PATH SSL_CERT_FILE SSL_CERT_DIR".split())


def kept_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that any program may need: locale, time zone, libraries and certificates."""
    return {key: value for key, value in variables.items() if key in _KEPT or key.startswith("LC_")}
