"""Which golds are missing. One rule for all verifiers, asked before a verifier reads a gold.

Tables have many spellings of "there is no value": pandas writes NaN for it, a conversion to text makes "nan"
or "None" of that. A gold so written would reward responses that say the same.
"""

import cmath
import json
import reprlib
from collections.abc import Mapping
from typing import Any

from verifiers.verifier import Verifier

MISSING_WORDS = frozenset(
    "nan NaN NAN Nan -nan -NaN sNaN NaT <NA> None null NULL Null NA N/A n/a #N/A #NA inf Inf INF -inf -Inf "
    "-INF +inf +Inf".split()
    + ["#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN", "1.#INF", "-1.#INF", "(null)"]
)
"""As machines write a value that is missing, or that no float holds: exactly these. Words that a person
writes as an answer ("none", "undefined", "no solution", "infinity", "\\infty") are not among them."""
_MISSING_TEXTS = MISSING_WORDS | {"Infinity", "-Infinity"}
"""Missing values that are not text: decimals write infinity as people do."""
_SHOWN_CHARACTERS = 80


def missing(gold: object) -> str | None:
    """Why `gold` is none, as a sentence; None for one that its verifier may read.

    Text is missing without a visible character, or as one of MISSING_WORDS; anything else when its text is
    one of them. Inside a list or an object words are meant, and None may stand for what is left out.
    """
    if isinstance(gold, str):
        return _complaint_of_text(gold)
    if gold is None or _is_missing_scalar(gold):
        return f"The gold is missing: it is {_shown(gold)}. Correct the row."
    found = missing_inside(gold)
    return None if found is None else f"The gold holds {found}, which is not a value. Correct the row."


def missing_inside(value: object) -> str | None:
    """The first value in or below `value` that is NaN, an infinity, NaT or NA."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if _is_missing_scalar(found):
            return _shown(found)
        if isinstance(found, Mapping):
            waiting.extend(found.values())
        elif isinstance(found, (list, tuple, set, frozenset)):
            waiting.extend(found)
        elif isinstance(items := getattr(found, "tolist", lambda: None)(), list):
            # An array of numpy.
            waiting.extend(items)
    return None


def parse_gold(verifier: Verifier, raw: object) -> Any:
    """The verifier's reference for a row's gold. Raises ValueError for a gold that is missing or bad.

    A verifier with the attribute `takes_any_gold` set decides on every gold itself.
    """
    if not getattr(verifier, "takes_any_gold", False):
        refuse_missing(raw)
    return verifier.parse_reference(raw)


def json_gold(raw: object) -> object:
    """`raw`, for verifiers that send it to a server. Raises ValueError for what JSON cannot hold."""
    try:
        json.dumps(raw, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            # Of a gold nested a thousand times deep, a full text could exceed Python's stack.
            f"The gold is {reprlib.repr(raw)}, expected something that JSON can hold: {error}."
        ) from error
    return raw


def refuse_missing(gold: object) -> None:
    """Raises ValueError."""
    if complaint := missing(gold):
        raise ValueError(complaint)


def _complaint_of_text(gold: str) -> str | None:
    if not any(character.isprintable() and not character.isspace() for character in gold):
        return f"The gold is missing: it is {_shown(gold)}, which has no visible character. Correct the row."
    # A worked solution is its answer behind this mark.
    word = gold.rpartition("####")[2].strip()
    if word not in MISSING_WORDS:
        return None
    return (
        f'The gold is missing: it is "{word}", as machines write a value that is not there. If the word is '
        f'the answer, write it as a list, ["{word}"].'
    )


def _is_missing_scalar(value: object) -> bool:
    if value is None or isinstance(value, (str, bytes, int, Mapping, list, tuple, set, frozenset)):
        return False
    if isinstance(value, complex):
        return not cmath.isfinite(value)
    # The text tells NaN of floats, decimals and numpy, NaT and NA apart from values without importing pandas.
    return str(value) in _MISSING_TEXTS


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN_CHARACTERS]
