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


# Words of two and three letters that an answer may be. Left out: what is a product of letters at least as
# often (at, by, ax, ma), and names of functions and Greek letters, which the parser knows.
SHORT_WORDS = frozenset(
    # Answers to a question.
    "no on ok up yes yep nay aye nah dne yea yup any all nil odd one two six ten off out low top few not "
    "nor tie win won max min sum add red tan end new old hot wet dry big fat sad mad bad shy sly raw ill "
    # Weekdays, months, people.
    "mon tue wed thu fri sat sun jan feb mar apr may jun jul aug sep oct nov dec abe ada aki ali amy ana "
    "ann art asa ava bea ben bev bob cal cam cat che dan deb dee des don dot ed eli ema emi eva eve fay "
    "flo fox gia gil gus guy hal han hao hua ian ida ike ina ira isa ivy jax jay jed jen jia jim jin jon "
    "joe kai kat kay ken kia kim kip kit lea lee len leo les lev lex lia lil lin liu liv liz lou lua luz "
    "mae mai mat meg mel mia moe nan nat ned nia nik noa ora pam pat peg pia rae raj ray reg ren rex ria "
    "rob rod ron roy rui sal sam sid sky stu sue syd tad tam tao ted tia tim tom uma una val van vic viv "
    "wei wes yan yin zac zev zia zoe "
    # Things, deeds and kinds.
    "ace act age ago aid aim air ale ant ape apt arc are arm ash ask asp ate awe axe bag bay ban bar bat "
    "bed bee beg bet bid bin bit bow box boy bud bug bun bus but buy bye cab can cap car cop cow cry cub "
    "cud cue cup cut dam day den dew did die dig dim dip doe dog due dug duo dye ear eat ebb eel egg ego "
    "elf elk elm emu era ewe eye fad fan far fax fed fee fen fib fig fin fir fit fix flu fly foe fog for "
    "fry fun fur gag gap gas gel gem get gin god got gum gun gut gym had ham has hat hay hen her hey hid "
    "hip his hit hog hop how hub hue hug hum hut ice icy ink inn ion ire its jab jam jar jaw jet jig job "
    "jog joy jug keg key kid kin lab lad lag lap law lay led leg let lid lie lip lit log lot lug man map "
    "men met mix mob mom mop mud mug nag nap net nib nip nit nod now nun nut oak oar oat oil orb ore our "
    "owe owl own pad pal pan paw pay pea pen pet pew pie pig pin pit ply pod pot pro pry pub pun pup put "
    "rag ram ran rap rat rib rid rig rim rip row rub rug rum run rut rye sac sag sap saw say sea see set "
    "sew she sin sip sir sit ski sob soy spa spy sty sub tab tag tap tar tax tea the tin tip toe ton too "
    "toy try tub tug urn use vat vet via vow wag war was wax way web who why wig wit woe wry yak yam yap "
    "yen yet you zap zip zoo amp ohm lux mol "
    # What is written in capitals.
    "aas sas sss ssa hl ne nw se sw usa uk eu un tv pc ai dna rna cpu gpu rom atp adp "
    # Also in two letters.
    "he hi me us we".split()
)
