"""Whether the words after a chosen letter offer another letter: "B. C or D" chooses nothing."""

import re

_JOINERS = {
    "or", "and", "nor", "maybe", "perhaps", "possibly", "probably", "also", "either", "alternatively", "else",
    "option", "choice", "answer", "the", "is", "it", "be", "could", "might", "but", "not", "if", "then",
}  # fmt: skip
_LETTERS = frozenset("ABCDEFGHIJ")
# I think D is also fine; choose D; D seems right as well.
_RECOMMENDED = re.compile(
    r"\b(?:choose|pick|select|think|alternatively,?)\s+\(?([A-J])\b"
    r"|(?:^|[\s(,])([A-HJ])\)?\s+(?:seems|looks|is\s+also)\s+(?:also|right|correct|fine|true)\b"
)
_WORD = re.compile(r"[A-Za-z]+")
_LONE_LETTER = re.compile(r"\W*[A-J]\W*")
_CANDIDATE = re.compile(
    r"(?:^|\b(?:or|nor|and|maybe|perhaps|possibly|probably|also|either|alternatively|else|option|choice|answer"
    r"|is|be|not)\s+|[,;/&|?]\s*)\(?([A-J])\)?(?=\s*(?:$|[,;/&|.?!)]|\b(?:or|and)\b))"
)
# The text of an option, which names other options: (E) Both A and B.
_ABOUT_OPTIONS = re.compile(
    r"\s*(?:both|neither)\s+\(?[A-J]\)?\s+(?:and|nor)\s+\(?[A-J]\)?\W*", re.IGNORECASE
)


def offers_another(letter: str, rest: str) -> bool:
    """Whether `rest`, what stands after the chosen letter, names another of the letters A to J as a choice.

    Small letters count only in a list ("b. c or d"): alone they are the names of quantities."""
    if _ABOUT_OPTIONS.fullmatch(rest) is not None:
        return False
    words = _WORD.findall(rest)
    singles = {word.upper() for word in words if len(word) == 1}
    is_list = bool(words) and all(len(word) == 1 or word.casefold() in _JOINERS for word in words)
    if is_list and (len(words) > 1 or _LONE_LETTER.fullmatch(rest)):
        return not singles & _LETTERS <= {letter}
    recommended = (one or other for one, other in _RECOMMENDED.findall(rest))
    return any(candidate != letter for candidate in (*_CANDIDATE.findall(rest), *recommended))
