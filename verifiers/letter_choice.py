r"""The letters that an answer chooses. Owns the grammar; knows no row.

    answer  := lead* (chosen | label text)
    lead    := [the | my] [correct | right | best | final] (option | choice | answer) [is | are | : | =]
    chosen  := letter (separator letter)* | capitals without a space
    letter  := B | (B) | [B], each with a full stop after it, or none
    label   := (B) | [B] | B. | B) | B:
    separator := , | ; | & | / | and | nothing between brackets

The text after a label is the option's own text or restates the letter ("B. The answer is B"). Whether it
is the option's is for the row to say (`verifiers.choice`). Where the row does not list its options, the text
must be a formula or a name ("B. Paris", "(B) 12"). A sentence is neither, since it may be about the letter.
So a text is refused if it has a word of the closed classes that make sentences (auxiliary verbs, pronouns for
the letter or the writer, connectors, negations), or one that judges (wrong, true, ruled out), doubts (maybe),
decides (pick) or names a choice (option, answer); and if it has another of the letters, unless that is an
article (A cat) or a quantity in a formula (F = ma). Some usual options that these words would refuse are
known: none of the above, both A and C. An option that is a sentence, or True and False, needs the options in
the row."""

import re
from dataclasses import dataclass

_STYLE = (
    r"\\(?:text(?:bf|rm|it|sf|tt|normal|up|sc)?|math(?:rm|bf|sf|it|normal)|mbox|hbox|boxed|fbox|emph|underline|bf|rm|it)"
    r"(?![A-Za-z])\s*"
)
_STYLED = re.compile(_STYLE + r"\{((?:[^{}]|\{[^{}]*\})*)\}")
_MARKUP = re.compile(
    _STYLE + r"|\\(?:left|right|quad|qquad|displaystyle)(?![A-Za-z])|\*\*|[$~`]|\\[ ,;:!()\[\]]"
)
_MAX_NESTED = 4
_LEAD = re.compile(
    r"(?:(?:the|my)\s+)?(?:(?:correct|right|best|final)\s+){0,2}(?:option|choice|answer)s?\b"
    r"\s*(?:(?:is|are)\b|=)?\s*:?\s*",
    re.IGNORECASE,
)
_LETTER = r"(?:\(\s*[A-Za-z]\s*\)|\[\s*[A-Za-z]\s*\]|[A-Za-z]\s*\)|(?<![A-Za-z])[A-Za-z](?![A-Za-z]))"
_LIST = re.compile(rf"{_LETTER}(?:\s*(?:[,;&/]\s*(?:and\b)?|and\b|(?<=[)\]]))\s*{_LETTER})*", re.IGNORECASE)
_CAPITALS = re.compile(r"[A-Z]{2,26}")
_LABEL = re.compile(
    r"(?:\(\s*(?P<round>[A-Za-z])\s*\)|\[\s*(?P<square>[A-Za-z])\s*\])\s*[.:]?\s*(?P<after>.*)"
    r"|(?P<plain>[A-Za-z])\s*(?P<mark>[.):])\s*(?P<text>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class LetterChoice:
    letters: frozenset[str]
    """In capitals; one of them where there is a text."""
    text: str = ""
    """Text after the letter, its markup gone but its formulas as written; empty for nothing."""
    is_abbreviation: bool = False
    """A full stop stands between letter and text, as in E. coli."""

    def may_stand(self, letters: str) -> bool:
        """Whether the text may be an option's, for all that is known without the row."""
        (letter,) = self.letters if self.text else ("",)
        plain = " ".join(self.text.replace("{", " ").replace("}", " ").split())
        return is_option_text(plain, letter, letters, after_full_stop=self.is_abbreviation)


def read_choice(answer: str, letters: str) -> LetterChoice | None:
    """The choice among `letters`, with the text that it may have; None for anything else."""
    plain = without_markup(answer).strip(" .,;:")
    plain = _without_lead(plain)
    chosen = _only_letters(plain, letters)
    if chosen is not None:
        return LetterChoice(chosen)
    label = _LABEL.fullmatch(plain)
    if label is None:
        return None
    letter = (label["round"] or label["square"] or label["plain"]).upper()
    text = (label["after"] or label["text"] or "").strip()
    if letter not in letters:
        return None
    chosen = frozenset(letter)
    if not text or _only_letters(_without_lead(text), letters) == chosen:
        return LetterChoice(chosen)
    return LetterChoice(chosen, text, is_abbreviation=label["mark"] == ".")


def chosen_letters(answer: str, letters: str) -> frozenset[str] | None:
    """The letters that the answer chooses, for all that is known without the row's options; else None."""
    choice = read_choice(answer, letters)
    return choice.letters if choice is not None and choice.may_stand(letters) else None


def without_markup(text: str) -> str:
    """The text without styles, dollars and emphasis, with single spaces. Formulas keep their braces."""
    for _ in range(_MAX_NESTED):
        text, num_changed = _STYLED.subn(r"\1", text)
        if not num_changed:
            break
    text = " ".join(_MARKUP.sub(" ", text).split()).strip("*_ ")
    while text.startswith("{") and text.endswith("}") and "}" not in text[:-1]:
        text = text[1:-1].strip()
    return text


def _without_lead(text: str) -> str:
    for _ in range(2):
        lead = _LEAD.match(text)
        if lead is None:
            break
        text = text[lead.end() :]
    return text


def _only_letters(text: str, letters: str) -> frozenset[str] | None:
    """The letters when there is nothing else, each once."""
    text = text.strip(" .,;:")
    if len(text) > 100:
        return None
    if _CAPITALS.fullmatch(text):
        return frozenset(text) if set(text) <= set(letters) and len(set(text)) == len(text) else None
    if _LIST.fullmatch(text) is None:
        return None
    chosen = {run.upper() for run in re.findall(r"[A-Za-z]+", text) if len(run) == 1}
    return frozenset(chosen) if chosen and chosen <= set(letters) else None


_MAX_CHARACTERS = 300

_CLAIMING = frozenset(
    # Auxiliary verbs, and verbs that stand for them.
    "is are was were be been being am do does did doing has have had having can could may might must "
    "shall should will would ought seem seems seemed look looks appear appears cannot ain't isnt arent "
    "wasnt doesnt didnt dont cant wont "
    # Pronouns.
    "i i'm i'd i'll i've me my we we're our you you're your it it's this that's there's let's "
    # Connectors.
    "because since so therefore thus hence if whether but however although though unless while whereas "
    "except excepting excluding excludes then also either else instead rather otherwise alternatively "
    "nevertheless nonetheless "
    # Negations.
    "no not nope nah nay never neither nor none non hardly barely scarcely "
    # Judgements.
    "correct incorrect wrong false true untrue accurate inaccurate valid invalid yes yeah yep likely "
    "unlikely probable improbable plausible implausible possible impossible doubtful dubious questionable "
    "mistaken mistake mistakenly erroneous error flawed bad worse worst better best preferable preferred "
    "misleading irrelevant unsound unsupported nonsense bogus absurd eliminated eliminate rejected reject "
    "refuted refute refutes discarded discard dismissed dismiss excluded exclude disqualified ruled "
    "disproved disproven struck scratch scrap cancel cancelled canceled crossed strike ignore ignored "
    "disregard forget skip avoid retract retracted withdrawn withdraw revoked overruled contradicted "
    "contradicts contradictory contradiction fails fail failed unsatisfactory insufficient inadequate "
    "ineligible debunked falsified violates denied deny denies disagree "
    # Decisions and doubts.
    "choose chose chosen choosing pick picked picking select selected selecting prefer prefers switch "
    "switched switching revise revised correction corrected correcting opt vote guess guessing think "
    "thinking thought believe suppose assume reckon unsure uncertain unclear wait hmm hm oops ops whoops "
    "sorry actually really maybe perhaps probably possibly presumably apparently arguably conceivably "
    "potentially supposedly "
    # Names of a choice.
    "option options choice choices answer answers alternative alternatives letter letters candidate".split()
)
_JUDGING = ("incorrect", "wrong", "mistak", "erroneous", "invalid", "eliminat", "disprov")
# "Hardly right" judges, and so may any text with the word; a right triangle and the direction do not.
_RIGHT = re.compile(r"right|right[- ](?:triangles?|angles?|angled|hand|side)\b.*", re.IGNORECASE)
_USUAL = re.compile(
    r"(?:none|all|both|neither)(?: of)?(?: (?:the|these|those|them))?"
    r"(?: (?:above|below|answers|options|choices|statements))?(?: (?:options|choices|statements|above))?"
    r"|(?:both|neither) \(?[a-z]\)? (?:and|nor|&) \(?[a-z]\)?"
    r"|(?:it )?(?:cannot|can not|can't) be (?:determined|concluded|inferred|known)"
    r"|(?:not enough|insufficient) (?:information|data)(?: (?:is )?(?:given|provided|available))?"
    r"|no (?:real |significant |such )?(?:solutions?|changes?|effects?|differences?|correlation|relationship)"
    r"|(?:not possible|impossible) to (?:determine|tell|say)"
    r"|(?=.*(?:only|ii|iv))(?:only )?(?:i{1,3}|iv|v)(?:(?:, |,? and |,? or )(?:i{1,3}|iv|v))*(?: only)?"
)
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_COMMAND = re.compile(r"\\[A-Za-z]+")
# What stands between the items of a list: the arrow of a change of mind, and the end of a sentence, too.
_SEPARATOR = re.compile(
    r"[,;:/|&]|[.!]\s|\b(?:and|or|nor)\b|-+>|=+>|[←-⇿⟵-⟿]"
    r"|\\(?:lor|land|vee|wedge|cup|cap|mid|vert|to|(?:long)?rightarrow|(?:Long)?Rightarrow|implies|mapsto|iff)(?![A-Za-z])"
)
_LABELLED = re.compile(
    r"(?:^|(?<=[\s,;]))(?:\(\s*([A-Za-z])\s*\)|\[\s*([A-Za-z])\s*\]|([A-Za-z])\s*[).:](?!\d))"
)
_OPERATOR = re.compile(r"[\d=+*/^_<>≤≥·×÷-]|\\")
_CROSSES = re.compile(r"[✀-➿🀀-🫿≠¬☐-☒?]|\\(?:neq?|neg|lnot|not)(?![A-Za-z])|\\times\s*$")
_ARTICLE = re.compile(r"(?:^|(?<=[\s(]))[Aa](?= [^\W\d_]{2,})")


def is_option_text(text: str, letter: str, letters: str, *, after_full_stop: bool = False) -> bool:
    """Whether `text`, without markup, may be the text of the option `letter`, one of `letters`.

    After a full stop a name needs a capital: "E. coli" chooses nothing."""
    text = text.replace("’", "'").strip()
    if len(text) > _MAX_CHARACTERS or _CROSSES.search(text):
        return False
    if not text or _USUAL.fullmatch(text.strip(" .,;:!").casefold()):
        return True
    if _claims(text) or _names_another(text, letter, letters):
        return False
    return not (after_full_stop and not _is_formula(text) and text.lstrip("\"'“‘([{")[:1].islower())


def _words(text: str) -> list[str]:
    return _WORD.findall(_COMMAND.sub(" ", text))


def _claims(text: str) -> bool:
    # May is a month.
    words = [word.casefold() for word in _words(text) if word != "May"]
    return (
        not _CLAIMING.isdisjoint(words)
        or any(word.endswith("n't") or word.startswith(_JUDGING) for word in words)
        or text.casefold().startswith(("and ", "or "))
        or ("right" in words and _RIGHT.fullmatch(text.strip(" .,;:!")) is None)
    )


def _names_another(text: str, letter: str, letters: str) -> bool:
    """Whether another of the letters stands there as a choice: labelled, alone in its item, among words."""
    others = frozenset(letters) - {letter}
    if any("".join(found).upper() in others for found in _LABELLED.findall(text)):
        return True
    for item in _SEPARATOR.split(text):
        parts = item.strip(" .!()[]{}\"'=+-*<>").split()
        if (
            parts
            and all(len(part) == 1 and part.isalpha() for part in parts)
            and not others.isdisjoint(item.upper())
        ):
            return True
    if _is_formula(text):
        return False
    return any(len(word) == 1 and word.upper() in others for word in _words(_ARTICLE.sub("", text)))


def _is_formula(text: str) -> bool:
    """Whether the text is mathematics: an operator or a digit, and no words but short names and units."""
    return _OPERATOR.search(text) is not None and all(len(word) <= 3 for word in _words(text))
