"""Checks of verifier options: each returns the value with its type, or raises a sentence that names the
knob."""

import difflib
from collections.abc import Mapping, Sequence


def nearest(word: str, known: Sequence[str]) -> str:
    """ " Did you mean 'math'?" or an empty string."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def refuse_unknown(verifier: str, options: Mapping[str, object], known: Sequence[str]) -> None:
    for name in options:
        if name not in known:
            raise ValueError(
                f"Verifier {verifier!r} has no option {name!r}.{nearest(name, known)} "
                f"Its options: {', '.join(sorted(known)) or 'none'}."
            )


def read_bool(verifier: str, name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"Option {name!r} of verifier {verifier!r} is {value!r}, expected true or false.")


def read_number(
    verifier: str, name: str, value: object, *, least: float = float("-inf"), most: float = float("inf")
) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most:
        return float(value)
    bounds = f" in [{least:g}, {most:g}]" if least > float("-inf") or most < float("inf") else ""
    raise ValueError(f"Option {name!r} of verifier {verifier!r} is {value!r}, expected a number{bounds}.")


def read_string(verifier: str, name: str, value: object, *, allowed: Sequence[str] = ()) -> str:
    if isinstance(value, str) and (not allowed or value in allowed):
        return value
    expected = f"one of {', '.join(allowed)}" if allowed else "a string"
    hint = nearest(value, allowed) if isinstance(value, str) else ""
    raise ValueError(f"Option {name!r} of verifier {verifier!r} is {value!r}, expected {expected}.{hint}")


def read_strings(verifier: str, name: str, value: object, *, allowed: Sequence[str] = ()) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part for part in value.split(",") if part]
    if not isinstance(value, (list, tuple)):
        raise ValueError(
            f"Option {name!r} of verifier {verifier!r} is {value!r}, expected a list of strings."
        )
    return tuple(read_string(verifier, name, item, allowed=allowed) for item in value)
