"""Times of day: 5:30 pm and 17:30 are one time. Without am or pm a text is a time only beside one that has
it: else it may be a ratio."""

import re

_TIME = re.compile(r"(\d{1,2})(?::([0-5]\d))?(?: ?([ap]m))?")
_NOON = re.compile(r"(?:12(?::00)? )?(?:(noon)|midnight)")


def same_time(one: str, other: str) -> bool | None:
    """Whether two cleaned texts are the same time of day; None unless both are times, one of them with am,
    pm, noon or midnight. Which half of the day it is may be left out, like a unit."""
    if (first := _time_of_day(one)) is None or (second := _time_of_day(other)) is None:
        return None
    if not (first[1] or second[1]):
        return None
    both = first[1] and second[1]
    return first[0] == second[0] or (
        not both and first[0] % 720 == second[0] % 720 and _is_left_out(one, other)
    )


def _is_left_out(one: str, other: str) -> bool:
    """Whether the digits are the same, so that one text lacks only am or pm."""
    first, second = _TIME.match(one), _TIME.match(other)
    return first is not None and second is not None and int(first.group(1)) == int(second.group(1))


def _time_of_day(words: str) -> tuple[int, bool] | None:
    """(minutes since midnight, whether the half of the day is said)."""
    noon = _NOON.fullmatch(words)
    if noon is not None:
        return 720 if noon.group(1) else 0, True
    time = _TIME.fullmatch(words)
    if time is None or not words.isascii():
        return None
    hour, minute, half = int(time.group(1)), int(time.group(2) or 0), time.group(3)
    if half is None:
        return (60 * hour + minute, False) if time.group(2) is not None and hour < 24 else None
    if not 1 <= hour <= 12:
        return None
    return 60 * (hour % 12 + 12 * (half == "pm")) + minute, True
