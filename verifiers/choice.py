"""Multiple choice: which letters the response chose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from verifiers.exact import Source, TextAnswer, answer_text, response_of
from verifiers.extract import Fallback
from verifiers.letter_choice import LetterChoice, chosen_letters, read_choice, without_markup
from verifiers.math.verifier import MathVerifier
from verifiers.verdict import Outcome, Verdict, correct, no_answer, wrong

_MAX_ANSWER_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class ChoiceReference:
    letters: frozenset[str]
    options: tuple[tuple[str, str], ...] = ()
    """(letter, text) of each option; empty when the row does not say them."""

    def text_of(self, letter: str) -> str | None:
        return next((text for known, text in self.options if known == letter), None)


@dataclass(frozen=True, kw_only=True)
class ChoiceVerifier(TextAnswer):
    """The gold is a letter, or several ("A,C"); the response must choose exactly those.

    A gold {"letter": "B", "options": {"A": "Paris", "B": "Rome"}} says the options, too (or their texts in a
    list, from A on): then the text after a letter must be that option's. Without them it must be a formula or
    a name, see `verifiers.letter_choice`."""

    letters: str = "ABCDEFGHIJ"
    source: Source = "boxed"
    fallbacks: tuple[Fallback, ...] = ("final_answer",)
    _math: MathVerifier = field(default_factory=MathVerifier, init=False)

    def __post_init__(self) -> None:
        if not self.letters.isalpha() or len(set(self.letters.upper())) != len(self.letters.upper()):
            raise ValueError(
                f"Option 'letters' of verifier 'choice' is {self.letters!r}, expected distinct letters."
            )
        object.__setattr__(self, "letters", self.letters.upper())

    def parse_reference(self, raw: object) -> ChoiceReference:
        if not isinstance(raw, Mapping):
            return ChoiceReference(self._read_letters(raw))
        if raw.keys() != {"letter", "options"}:
            raise ValueError(f"The gold answer is {raw!r}, expected an object with 'letter' and 'options'.")
        options = self._read_options(raw["options"])
        letters = self._read_letters(raw["letter"])
        if not letters <= {letter for letter, _ in options}:
            raise ValueError(f"The gold answer is {raw['letter']!r}, expected a letter of 'options'.")
        return ChoiceReference(letters, options)

    def _read_letters(self, raw: object) -> frozenset[str]:
        text = ",".join(map(str, raw)) if isinstance(raw, (list, tuple)) else raw
        chosen = chosen_letters(text, self.letters) if isinstance(text, str) else None
        if not chosen:
            raise ValueError(
                f"The gold answer is {raw!r}, expected one or more of the letters {self.letters} "
                "(another set: option 'letters')."
            )
        return chosen

    def _read_options(self, raw: object) -> tuple[tuple[str, str], ...]:
        pairs = list(raw.items()) if isinstance(raw, Mapping) else []
        if isinstance(raw, Sequence) and not isinstance(raw, str):
            pairs = list(zip(self.letters, raw, strict=False)) if len(raw) <= len(self.letters) else []
        options = tuple(
            (str(letter).upper(), str(text).strip()) for letter, text in pairs if text is not None
        )
        known = {letter for letter, _ in options}
        if not options or len(known) < len(options) or not known <= set(self.letters):
            raise ValueError(
                f"The options of the gold are {raw!r}, expected the text of each letter, or a list of texts; "
                f"letters: {self.letters} (another set: option 'letters')."
            )
        return options

    def verify(self, response: str, reference: ChoiceReference) -> Verdict:
        answer, method, reason = answer_text(response, self)
        if answer is None:
            return no_answer(reason)
        shown = answer.strip()[:500]
        letters = "".join(letter for letter, _ in reference.options) or self.letters
        choice = read_choice(answer[:_MAX_ANSWER_CHARACTERS], letters)
        if choice is None:
            return wrong(extracted=shown, detail="is not a choice of letters", method=method)
        if choice.letters != reference.letters:
            return wrong(extracted=shown, detail=f"chose {', '.join(sorted(choice.letters))}", method=method)
        if not self._may_stand(choice, reference, letters):
            detail = f"the text after {min(choice.letters)} is not that of an option"
            return wrong(extracted=shown, detail=detail, method=method)
        return correct(extracted=shown, detail="the same choice", method=method)

    def verify_fast(self, response: str, reference: ChoiceReference) -> Verdict | None:
        # Texts of options may be compared as mathematics, which takes a worker.
        return self.verify(response, reference) if len(response) < 2000 and not reference.options else None

    def response_with(self, answer: str) -> str:
        return response_of(answer, self)

    def _may_stand(self, choice: LetterChoice, reference: ChoiceReference, letters: str) -> bool:
        if not choice.text:
            return True
        (letter,) = choice.letters
        option = reference.text_of(letter)
        if option is None:
            return choice.may_stand(letters)
        return _squeezed(option) == _squeezed(choice.text) or self._is_same_value(option, choice.text)

    def _is_same_value(self, option: str, text: str) -> bool:
        r"""Whether both are one formula: \frac12 for 1/2."""
        try:
            gold = self._math.parse_reference(without_markup(option))
        except ValueError:
            return False
        return self._math.verify(f"\\boxed{{{text}}}", gold).outcome is Outcome.CORRECT


def _squeezed(text: str) -> str:
    """The text as options are compared: no markup, case, space and braces, no punctuation at its ends."""
    return "".join(without_markup(text).split()).replace("{", "").replace("}", "").strip(".,;:!").casefold()
