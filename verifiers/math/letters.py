r"""Meaning of letters: whether letters alone are a word, no and DNE, or a product, xy and mgh (owns that
decision for golds); and where the letter of a formula lives, by the words behind it.

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

All else (ac, at, AB, Fe) is a guess: read as a product and as text, either of which may match.

"k is an integer", "for any integer k" and (k \in \mathbb{Z}) behind a formula that has the letter become the
tokens , k \in \mathbb{Z}; "C is a constant" says nothing and is left out."""

import re
from enum import Enum
from typing import Literal

from verifiers.math.tokens import Token
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
    is_clear = _are_neighbours(run) or not (run.islower() or run.istitle()) or not _VOWEL.search(run)
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


_MAX_TOKENS = 20
_MAX_CHARACTERS = 400
_HINT = re.compile(r"^\\in$|integer|number|real|constant|arbitrary", re.IGNORECASE)
_MARKUP = re.compile(r"\\[,;:! ]|[~\s]+")

_LETTER = r"(?P<letter>[A-Za-z])"
_LEAD = r"(?:(?i:(?:where|with|for|and)(?: (?:any|all|every|each|some))?)|\\forall) "
_NUMBERS = r"(?P<numbers>(?i:(?:positive )?integer|natural number|rational number|real number|real))s?"
_SET = r"(?:\\mathbb )?(?:(?P<set>[ZNQR])|\{ (?P<braced>[ZNQR]) \})|(?:the (?:set of )?)?(?:all )?" + _NUMBERS
_ARTICLES = r"(?:(?i:an?|any|some|all|arbitrary|every|each) ){0,3}"
_MEMBER = rf"{_LETTER} (?:\\in|is in|in) (?:{_SET})"
_KIND = rf"{_LETTER} (?:(?:is|are|being|:) )?{_ARTICLES}{_NUMBERS}"
_CALLED = rf"{_ARTICLES}{_NUMBERS} {_LETTER}"
_CONSTANT = rf"{_LETTER} is {_ARTICLES}(?P<constant>constant(?: of integration)?|arbitrary)"
_END = r"(?: [.,;])*$"


def _pattern(body: str, *, needs_lead: bool = False) -> re.Pattern[str]:
    # A bare "k is an integer" needs a comma or a bracket before it, else it may belong to the formula.
    start = (
        rf"(?:^| )(?:[,;:] )*(?:{_LEAD})" if needs_lead else rf"(?:^| )(?:(?:[,;:] )+(?:{_LEAD})?|{_LEAD})"
    )
    names = body.replace("?P<", "?P<in_")
    return re.compile(rf"(?:{start}{body}|(?:^| )(?:[,;:] )*\( (?:{_LEAD})?{names} \)){_END}")


_FORMS = (
    _pattern(_MEMBER),
    _pattern(_KIND),
    _pattern(_CALLED, needs_lead=True),
    _pattern(_CONSTANT),
)
_NAMES = {"integer": "Z", "natural number": "N", "rational number": "Q", "real number": "R", "real": "R"}


def with_qualifier(tokens: list[Token]) -> list[Token]:
    r"""The tokens, with such words at their end as , k \in \mathbb{Z}."""
    first = max(0, len(tokens) - _MAX_TOKENS)
    if not any(_HINT.search(token.value) for token in tokens[first:]):
        return tokens
    starts: dict[int, int] = {}
    tail = ""
    for at in range(first, len(tokens)):
        starts[len(tail)] = at
        tail += f" {_spelled(tokens[at])}"
    if len(tail) > _MAX_CHARACTERS:
        return tokens
    for form in _FORMS:
        found = form.search(tail)
        # In the middle of a text there is no place to cut.
        cut = starts.get(found.start()) if found is not None else None
        if found is None or cut is None:
            continue
        letter, where = _said(found)
        if any(_has_letter(token, letter) for token in tokens[:cut]):
            return [*tokens[:cut], *_member(letter, where)]
    return tokens


def _has_letter(token: Token, letter: str) -> bool:
    """Whether the letter is this token or a factor of it: the k of kx."""
    return token.kind in ("symbol", "word") and len(token.value) <= 3 and letter in token.value


def _spelled(token: Token) -> str:
    text = _MARKUP.sub(" ", token.value).strip()
    if token.kind != "text":
        return text
    # \text{, where } and \text{ is an integer.} hold punctuation.
    return re.sub(r" ?([,;:.()]) ?", r" \1 ", text).strip()


def _said(found: re.Match[str]) -> tuple[str, str | None]:
    """(letter, name of the set, or None for a constant)."""
    said = {name.removeprefix("in_"): value for name, value in found.groupdict().items() if value is not None}
    if "constant" in said:
        return said["letter"], None
    numbers = said.get("numbers", "").casefold()
    name = said.get("set") or said.get("braced") or _NAMES[numbers.removeprefix("positive ")]
    return said["letter"], f"{name}+" if numbers.startswith("positive") else name


def _member(letter: str, where: str | None) -> list[Token]:
    if where is None:
        return []
    mark = [Token("operator", "^"), Token("operator", "+")] if where.endswith("+") else []
    return [
        Token("operator", ","),
        Token("symbol", letter),
        Token("command", r"\in"),
        Token("command", r"\mathbb"),
        Token("symbol", where[0]),
        *mark,
    ]
