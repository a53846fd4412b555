"""Where text of programs, models and verifiers enters: what passes can be stored and shown anywhere.

Python strings may hold lone surrogates, which are no UTF-8, and NUL, at which C programs (`sqlite3` among
them) end a string; and a program may print gigabytes. A verdict of the user's own verifier may hold any
object. Owns what happens to them; every verdict of the pool passes here."""

import math
import re
import traceback

from verifiers.plugins import in_words
from verifiers.verdict import MAX_SHAPING, Outcome, Verdict, as_number, fault

MAX_TEXT_CHARACTERS = 4_000_000
"""Limit for a whole response; longer ones are not graded."""
MAX_EXTRACTED_CHARACTERS = 100_000
MAX_WORDS_CHARACTERS = 4_000
"""Limit for a detail, a note, an error message."""
MAX_TRACE_CHARACTERS = 16_000
MAX_FRAMES = 20
"""Limit for a traceback: its innermost frames."""
RAISED = "the verifier raised "
"""Begins the detail of a verifier that raised; then come the type, a colon, the message and (file:line)."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def storable(text: str, *, limit: int = MAX_TEXT_CHARACTERS) -> str:
    """The same text where it is valid Unicode without NUL and not above `limit` characters.

    Surrogates (a pair in two halves included) and NUL become U+FFFD, one each; what is cut off is counted at
    the end. Always encodes as UTF-8."""
    if len(text) > limit:
        left = f"... ({len(text) - limit} more characters)"
        text = text[:limit] + left
    return text if _is_storable(text) else _UNSTORABLE.sub(_REPLACEMENT, text)


def _is_storable(text: str) -> bool:
    """As a search for _UNSTORABLE says, ten times as fast."""
    if "\x00" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable_verdict(found: object) -> Verdict:
    """`found` with plain numbers and storable text; a FAULT when a verifier returned no such verdict."""
    if not isinstance(found, Verdict):
        return fault(f"verify returned {type(found).__name__}, expected a Verdict")
    try:
        return Verdict(
            Outcome(found.outcome),
            # Numbers of numpy and fractions are numbers too, but no JSON.
            None if found.score is None else as_number(found.score, "score", 0.0, 1.0),
            extracted=_text_of(found.extracted, MAX_EXTRACTED_CHARACTERS),
            detail=_text_of(found.detail, MAX_WORDS_CHARACTERS) or "",
            seconds=as_number(found.seconds, "seconds", 0.0, math.inf),
            shaping=as_number(found.shaping, "shaping", -MAX_SHAPING, MAX_SHAPING),
            method=_text_of(found.method, MAX_WORDS_CHARACTERS) or "",
            is_repeatable=bool(found.is_repeatable),
            trace=_text_of(found.trace, MAX_TRACE_CHARACTERS) or "",
            turn_rewards=found.turn_rewards,
            spans=found.spans,
            scores=found.scores,
        )
    except Exception as error:  # the boundary: whatever a verifier put into its verdict raises here
        return fault(f"verify returned a Verdict that cannot be read: {_describe(error)}")


def fault_of(error: BaseException) -> Verdict:
    """The FAULT of a verifier that raised, with the place where it did and the traceback."""
    frame = error.__traceback__
    where = ""
    while frame is not None:
        where = f" ({frame.tb_frame.f_code.co_filename}:{frame.tb_lineno})"
        frame = frame.tb_next
    trace = "".join(traceback.format_exception(error, limit=-MAX_FRAMES))
    return Verdict(
        Outcome.FAULT,
        None,
        detail=f"{RAISED}{_describe(error)}{where}",
        trace=storable(trace, limit=MAX_TRACE_CHARACTERS),
    )


def _describe(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception as second:  # an exception's own __str__ may raise as well
        words = f"its message cannot be read: {type(second).__name__}"
    return storable(f"{type(error).__name__}: {in_words(words)}", limit=MAX_WORDS_CHARACTERS // 2)


def _text_of(value: object, limit: int) -> str | None:
    return None if value is None else storable(str(value), limit=limit)
