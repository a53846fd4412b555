r"""Whether letters alone are a word, no and DNE, or a product, xy and mgh. Owns that decision for golds.

A run of letters is a word when it
- is one of `SHORT_WORDS`, or has four letters or more;
- repeats a letter: odd, SSS, HHT; a product writes a power;
- holds a small o, which is no variable: it looks like zero;
- is a Roman numeral in capitals: IV is not VI;
- is N/A, which is no fraction, or
- is a name by its capital and a vowel, with three letters: Kai.

It is clearly a product when it is no word and
- its letters are neighbours in the alphabet: ab, xyz, pqr;
- it mixes capitals and small letters as no name does: nRT, qE;
- it is small and has no vowel, y being one: mgh, kx.

All else (ac, at, AB, Fe) is a guess: read as a product and as text, either of which may match."""

import re
from enum import Enum
from typing import Literal

from verifiers.math.short_words import SHORT_WORDS
from verifiers.math.units import known_unit
from verifiers.math.words import CONSTANTS, FUNCTIONS, GREEK, JOINERS, fused_function

Letters = Literal["auto", "word", "product"]
"""How a gold of letters alone is read; "word" and "product": as the row says."""


class LettersAre(Enum):
    WORD = "a word"
    PRODUCT = "a product of letters"
    GUESS = "a product of letters or a word"


_LETTERS_ONLY = re.compile(r"[A-Za-z][A-Za-z\s'.,\-]*")
_RUN = re.compile(r"[A-Za-z]+")
_BREAK = re.compile(r"[\s.,\-']+")
_ROMAN = re.compile(r"(?=[IVX]{2})X{0,3}(?:IX|IV|V?I{0,3})")
_VOWEL = re.compile(r"[aeiouy]", re.IGNORECASE)
_LONG = 4
_NAMES_OF_POINTS = frozenset("ABCDEFGH")


def letters_are(text: str) -> LettersAre | None:
    """The kind of a text of letters alone; None for any other text, and for letters that stand alone: x y."""
    if text.casefold() == "n/a":
        return LettersAre.WORD
    if not _LETTERS_ONLY.fullmatch(text):
        return None
    kinds = {run_is(run) for run in _runs(text)} - {None}
    if not kinds:
        return None
    return next(kind for kind in (LettersAre.WORD, LettersAre.GUESS, LettersAre.PRODUCT) if kind in kinds)


def spaced_letters(text: str) -> str | None:
    """A single run of letters spelled as the product that the row says it is: "n o" of "no"; else None."""
    return " ".join(text) if _RUN.fullmatch(text) and len(text) > 1 and not _is_known(text) else None


def is_prose(text: str) -> bool:
    """Whether a text of letters alone holds a long word, so that it cannot be a product."""
    return _LETTERS_ONLY.fullmatch(text) is not None and any(len(run) >= _LONG for run in _runs(text))


def run_is(run: str) -> LettersAre | None:
    """The kind of one run of letters; None of a single letter, a joiner (and) and what mathematics names."""
    if len(run) == 1 or run in JOINERS or _is_known(run):
        return None
    if len(run) >= _LONG or _is_short_word(run):
        return LettersAre.WORD
    if run.isupper():
        return LettersAre.GUESS if not _are_neighbours(run) else LettersAre.PRODUCT
    is_clear = _are_neighbours(run) or _mixes_cases(run) or not _VOWEL.search(run)
    return LettersAre.PRODUCT if is_clear and not run.istitle() else LettersAre.GUESS


def _runs(text: str) -> list[str]:
    return [run for run in _BREAK.split(text) if run and not _is_known(run)]


def _is_known(run: str) -> bool:
    """Whether mathematics has this name: sin, pi, alpha, sinx, meters."""
    function = fused_function(run)
    return (
        run in FUNCTIONS
        or run in CONSTANTS
        or run in GREEK
        or (len(run) >= _LONG and known_unit(run))
        or (function is not None and run[-1] in "xyz")
    )


def _is_short_word(run: str) -> bool:
    if run.isupper() and _NAMES_OF_POINTS.issuperset(run) and len(set(run)) == len(run):
        # The angle BAD.
        return False
    return (
        run.casefold() in SHORT_WORDS
        or len(set(run)) < len(run)
        or "o" in run
        or _ROMAN.fullmatch(run) is not None
        or (run.istitle() and len(run) > 2 and _VOWEL.search(run) is not None)
    )


def _are_neighbours(run: str) -> bool:
    return all(ord(after) == ord(before) + 1 for before, after in zip(run, run[1:], strict=False))


def _mixes_cases(run: str) -> bool:
    return not run.islower() and not run.isupper() and not run.istitle()
