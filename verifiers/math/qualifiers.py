r"""Words behind a formula that say where its letter lives: "k is an integer", "for any integer k",
(k \in \mathbb{Z}). All of them become the tokens , k \in \mathbb{Z}; "C is a constant" says nothing and is
left out. Only for a letter that the formula before it has."""

import re

from verifiers.math.tokens import Token

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
