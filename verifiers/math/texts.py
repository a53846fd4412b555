r"""Answers that are words, not mathematics: dates, times of day, chemical formulas.

A date is what both sides write of it: with a year on one side alone they differ, and so does a weekday.
7/4/2024 is no date, since half of the world reads it as April 7. 5:30 pm and 17:30 are one time of day;
without am or pm a text is a time only beside one that has it, else it may be a ratio.
H_2O, \mathrm{H_2O} and \ce{H2O} are one; Co is not CO."""

import calendar
import re

# Not from `calendar`, whose names are of the machine's language.
_MONTHS = {
    spelling: number
    for number, names in enumerate(
        "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug|september sept sep|"
        "october oct|november nov|december dec".split("|"),
        start=1,
    )
    for spelling in names.split()
}
_WEEKDAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_MONTH = rf"(?P<month>{'|'.join(sorted(_MONTHS, key=len, reverse=True))})\.?"
_DAY = r"(?P<day>\d{1,2})(?:\s?\^?\s?(?:st|nd|rd|th))?"
_YEAR = r"(?:\s?,?\s(?P<year>\d{4}))?"
_WEEKDAY = rf"(?:(?P<weekday>{_WEEKDAYS}),?\s)?"
_SPELLINGS = [
    re.compile(spelling, re.IGNORECASE)
    for spelling in (
        rf"{_WEEKDAY}{_MONTH}\s(?:the\s)?{_DAY}{_YEAR}",
        rf"{_WEEKDAY}(?:the\s)?{_DAY}\s(?:day\s)?(?:of\s)?{_MONTH}{_YEAR}",
        rf"{_MONTH}(?:\sof|,)?\s(?P<year>\d{{4}})",
        r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)",
    )
]
_LEAP_YEAR = 2000
_MAX_CHARACTERS = 60


def date_of(words: str) -> str | None:
    """The date in the manner of ISO 8601 (2024-07-04, --07-04, 2024-07), after its weekday if it has one;
    None for any other text, and for a day that its month does not have.

    `words` as `clean_words` makes them."""
    if len(words) > _MAX_CHARACTERS:
        return None
    words = re.sub(r"\s*\^\s*(?=(?:st|nd|rd|th)\b)", "", words)
    for spelling in _SPELLINGS:
        match = spelling.fullmatch(words)
        if match is not None:
            return _spelled(match.groupdict())
    return None


def _spelled(parts: dict[str, str | None]) -> str | None:
    month = parts["month"] or ""
    number = int(month) if month.isdecimal() else _MONTHS[month.casefold()]
    year, day = parts.get("year"), parts.get("day")
    if not 1 <= number <= 12:
        return None
    if day is None:
        return f"{year}-{number:02}"
    if year == "0000" or not 1 <= int(day) <= calendar.monthrange(int(year or _LEAP_YEAR), number)[1]:
        return None
    weekday = (parts.get("weekday") or "").casefold()
    return f"{weekday} {year or '-'}-{number:02}-{int(day):02}".strip()


# Times of day

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
        not both and first[0] % 720 == second[0] % 720 and _hour(one) == _hour(other)
    )


def _hour(words: str) -> int | None:
    """As it is written: the same on both sides where one of them lacks only am or pm."""
    match = _TIME.match(words)
    return None if match is None else int(match.group(1))


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


_ELEMENTS = (
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb "
    "Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Nd Sm Eu Gd Hf Ta W Re Os Ir Pt Au Hg Tl "
    "Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am No"
).split()
_ATOM = rf"(?:{'|'.join(sorted(_ELEMENTS, key=len, reverse=True))})\d*"
_FORMULA = re.compile(rf"\d*(?:{_ATOM}|\((?:{_ATOM})+\)\d*)+(?:\^\d*[+-])?")
_MARKUP = re.compile(r"\\(?:mathrm|text(?:rm)?|ce|rm)(?![A-Za-z])|[{}\s_$]|\\[,;:! ]")
_MARKED = re.compile(r"\\(?:mathrm|ce|rm)(?![A-Za-z])|\\text.*[\d^]")


def formula_of(text: str) -> str | None:
    """The formula in plain letters and digits; None of any other text."""
    plain = _MARKUP.sub("", text)
    return plain if _FORMULA.fullmatch(plain) else None


def is_marked_formula(text: str) -> bool:
    """Whether the text is a formula that is not written as a product of letters."""
    return "\\" in text and _MARKED.search(text) is not None and formula_of(text) is not None
