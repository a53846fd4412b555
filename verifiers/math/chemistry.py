r"""Chemical formulas: H_2O, \mathrm{H_2O} and \ce{H2O} are one; Co is not CO."""

import re

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
