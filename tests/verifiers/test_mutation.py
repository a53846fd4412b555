"""Each rule of policy is held by a case: with the rule broken, the cases of its topic no longer pass."""

import functools
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from verifiers.letter_choice import LetterChoice
from verifiers.math.functions import FUNCTIONS
from verifiers.math.verifier import MathVerifier

FOLDER = Path(__file__).parent / "cases"


def has_mistake(topic: str) -> bool:
    for line in (FOLDER / f"{topic}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        verifier = MathVerifier(**row.get("options", {}))
        try:
            outcome = verifier.verify(row["response"], verifier.parse_reference(row["gold"])).outcome.value
        except Exception:  # a broken rule may break more than a verdict
            outcome = "raised"
        if outcome != row["expect"]:
            return True
    return False


def always(value: Any) -> Callable[..., Any]:
    return lambda *arguments, **named: value


def first(numeric: Any, *arguments: Any) -> Any:
    return arguments[0]


NOT_TURNED = {sign: sign for sign in ("<", ">", "<=", ">=", "!=", "=")}

BROKEN: list[tuple[str, str, str, Any]] = [
    # (topic, module, name, what it is replaced by)
    ("extraction", "verifiers.extract", "_ONE_BREATH", re.compile("(?!)")),
    ("extraction", "verifiers.extract", "final_part", lambda response, **_: (response, "")),
    ("extraction", "verifiers.extract", "_hashes", always(None)),
    ("units", "verifiers.math.verifier", "ratio_of_units", always(Fraction(1))),
    ("units", "verifiers.math.verifier", "ratio_of_units", always(None)),
    ("units", "verifiers.math.answer", "parse_unit", always(None)),
    ("decimals", "verifiers.math.scalars", "MIN_SIGNIFICANT", 1),
    ("decimals", "verifiers.math.scalars", "MIN_SIGNIFICANT", 99),
    ("percent", "verifiers.math.marks", "_same_percent", always(False)),
    ("units", "verifiers.math.marks", "_is_rational", always(True)),
    ("intervals", "verifiers.math.regions", "_same_end", lambda one, other: one.size == other.size),
    ("intervals", "verifiers.math.regions", "_complement", lambda intervals: list(intervals)),
    ("inequalities", "verifiers.math.regions", "_TURNED", NOT_TURNED),
    ("inequalities", "verifiers.math.relations", "_FLIPPED", NOT_TURNED),
    ("tuples", "verifiers.math.comparison", "_same_in_order", lambda one, other: len(one) == len(other)),
    ("sets", "verifiers.math.comparison", "_distinct", lambda items: items),
    ("sets", "verifiers.math.comparison", "_same_in_any_order", lambda one, other: len(one) == len(other)),
    ("equations", "verifiers.math.comparison", "same_equation", always(False)),
    ("equations", "verifiers.math.comparison", "same_equation", always(True)),
    ("equations", "verifiers.math.relations", "same_scalar", always(True)),
    ("several", "verifiers.math.comparison", "expand", lambda node: node),
    ("bases", "verifiers.math.comparison", "same_based", lambda gold, response: type(gold) is type(response)),
    ("ratios", "verifiers.math.comparison", "same_ratio", always(True)),
    ("families", "verifiers.math.families", "_same_lattice", always(False)),
    ("families", "verifiers.math.families", "_same_lattice", always(True)),
    ("choice", "verifiers.math.verifier", "read_choice", always(None)),
    ("choice", "verifiers.math.verifier", "read_choice", always(LetterChoice(frozenset("C")))),
    ("polynomials", "verifiers.math.scalars", "_same_function", always(True)),
    ("polynomials", "verifiers.math.scalars", "_same_function", always(False)),
    ("hostile", "verifiers.math.algebra", "proves_equal", always(True)),
    ("pieces", "verifiers.math.scalars", "_same_function", always(True)),
    ("pieces", "verifiers.math.scalars", "_far_away", always(Counter())),
    ("pieces", "verifiers.math.points", "Drawing.pieces", always([])),
    ("matrices", "verifiers.math.comparison", "as_vector", always(None)),
    ("fractions", "verifiers.math.parser", "is_proper_fraction", always(False)),
    ("logs", "verifiers.math.arithmetic", "FUNCTIONS",
     FUNCTIONS | {"log": first, "ln": first}),
    ("words", "verifiers.math.letters", "_is_short_word", always(False)),
    ("words", "verifiers.math.letters", "_is_short_word", always(True)),
    ("words", "verifiers.math.letters", "_are_neighbours", always(True)),
    ("words", "verifiers.math.verifier", "unstyled", always("")),
    ("words", "verifiers.math.answer", "letters_are", always(None)),
    ("dates", "verifiers.math.answer", "date_of", always(None)),
    ("number_words", "verifiers.math.number_words", "_below_hundred", always(None)),
    ("noise", "verifiers.math.comparison", "_same_modulo", always(False)),
    ("echoes", "verifiers.math.verifier", "undone_operation", always(None)),
    ("echoes", "verifiers.math.verifier", "undone_operation", always("trigonometry")),
    ("echoes", "verifiers.math.operations", "operation_kinds", always(frozenset())),
    ("echoes", "verifiers.math.operations", "_is_arithmetic", always(False)),
    ("echoes", "verifiers.math.operations", "_is_literal", always(True)),
    ("multipliers", "verifiers.math.units", "_MULTIPLIERS", set()),
    ("multipliers", "verifiers.math.units", "_COLLECTIVES", set()),
    ("multipliers", "verifiers.math.units", "_ORDERED", set()),
    ("multipliers", "verifiers.math.answer", "_CLOCK", re.compile("(?!)")),
    ("multipliers", "verifiers.math.marks", "is_full_hour", always(False)),
    ("quantities", "verifiers.math.relations", "_names_a_value", always(True)),
    ("quantities", "verifiers.math.relations", "_names_a_value", always(False)),
    ("quantities", "verifiers.math.relations", "_ALGEBRA", set()),
    ("thousands", "verifiers.math.answer", "_has_leading_zero", always(False)),
    ("thousands", "verifiers.math.comparison", "_distinct", lambda items: items),
    ("thousands", "verifiers.math.comparison", "_members", lambda items, like: items.items),
    ("spelling_of_groups", "verifiers.math.relations", "_reversed", lambda chain: chain),
    ("word_lists", "verifiers.math.comparison", "list_of_words", always(None)),
    ("word_lists", "verifiers.math.comparison", "with_constant_of", lambda gold, response: response),
    ("choice", "verifiers.letter_choice", "is_option_text", always(False)),
    ("choice", "verifiers.letter_choice", "is_option_text", always(True)),
    ("choice", "verifiers.option_text", "_claims", always(False)),
    ("choice", "verifiers.option_text", "_names_another", always(False)),
    ("surroundings", "verifiers.extract", "boxed_in_context", lambda text, start, stop, content: content),
    ("surroundings", "verifiers.extract", "is_denied", always(False)),
    ("surroundings", "verifiers.box_context", "_is_invisible", always(False)),
    ("surroundings", "verifiers.extract", "_is_sentence", always(False)),
    ("surroundings", "verifiers.extract", "_NEW_SENTENCE", re.compile("(?!)")),
    ("surroundings", "verifiers.box_context", "_is_dash", always(False)),
    ("surroundings", "verifiers.box_context", "_is_in_comment", always(False)),
    ("integrals", "verifiers.math.substitution", "_value", always(None)),
    ("integrals", "verifiers.math.comparison", "is_antiderivative", always(True)),
    ("series", "verifiers.math.substitution", "_value", always(None)),
    ("limits", "verifiers.math.substitution", "_value", always(None)),
    ("linear_algebra", "verifiers.math.substitution", "_is_matrix", always(False)),
    ("thousands", "verifiers.math.tokens", "_PLAIN_COMMA", re.compile("(?!)")),
    ("atoms", "verifiers.math.tokens", "_SIGNS_IN_ATOMS", frozenset()),
    ("atoms", "verifiers.math.cursor", "OPERATORS", frozenset()),
    ("atoms", "verifiers.math.notation", "_SPOKEN_SIGN", re.compile("(?!)")),
    ("repeating", "verifiers.math.literals", "_stands_alone", always(True)),
    ("repeating", "verifiers.math.literals", "_stands_alone", always(False)),
    ("repeating", "verifiers.math.literals", "_take_bracketed_digits", always(None)),
    ("added_constants", "verifiers.math.comparison", "with_constant_of", lambda gold, response: response),
    ("added_constants", "verifiers.math.added_constant", "_is_alone", always(True)),
    ("added_constants", "verifiers.math.added_constant", "_may_be_renamed", always(True)),
    ("added_constants", "verifiers.math.added_constant", "_COEFFICIENTS", frozenset()),
    ("nested_lists", "verifiers.math.comparison", "as_matrix", always(None)),
    ("nested_lists", "verifiers.math.vectors", "_is_row", always(True)),
    ("clock", "verifiers.math.verifier", "same_time", always(False)),
    ("clock", "verifiers.math.verifier", "same_time", always(None)),
    ("clock", "verifiers.math.dates", "_NOON", re.compile("(?!)")),
    ("clock", "verifiers.math.dates", "_is_left_out", always(False)),
    ("clock", "verifiers.math.dates", "_is_left_out", always(True)),
    ("qualifiers", "verifiers.math.answer", "with_qualifier", lambda tokens: tokens),
    ("qualifiers", "verifiers.math.comparison", "without_qualifier", lambda gold, response: response),
    ("qualifiers", "verifiers.math.families", "_same_renamed", always(True)),
    ("qualifiers", "verifiers.math.families", "_same_renamed", always(False)),
    ("qualifiers", "verifiers.math.families", "_REAL_LETTERS", frozenset()),
    ("assignments", "verifiers.math.comparison", "same_solutions", always(None)),
    ("assignments", "verifiers.math.solutions", "_in_order_of", lambda response, gold: response.values),
    ("assignments", "verifiers.math.solutions", "_same_values", always(True)),
    ("parts", "verifiers.extract", "boxes_of_parts", always(())),
    ("parts", "verifiers.parts", "_BETWEEN", re.compile("(?s).*")),
    ("parts", "verifiers.parts", "_NAMED", re.compile("(?!)")),
    ("parts", "verifiers.parts", "_labelled", lambda text, boxes, kind: boxes),
    ("parts", "verifiers.math.verifier", "_have_one_name", always(True)),
    ("parts", "verifiers.math.verifier", "_have_one_name", always(False)),
    ("named_intervals", "verifiers.math.regions", "spelled", always(None)),
    ("named_intervals", "verifiers.math.regions", "spelled", always("x")),
    ("named_ratios", "verifiers.math.comparison", "names_ratio", always(False)),
    ("named_ratios", "verifiers.math.comparison", "names_ratio", always(True)),
    ("named_ratios", "verifiers.math.relations", "names_ratio", always(True)),
    ("named_ratios", "verifiers.math.relations", "same_name", always(True)),
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Texts that the modules keep would hide a broken rule, and outlive it."""
    forget()
    yield
    forget()


def forget() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("verifiers.math"):
            for kept in list(vars(module).values()):
                if isinstance(kept, functools._lru_cache_wrapper):
                    kept.cache_clear()


@pytest.mark.parametrize(
    ("topic", "module", "name", "broken"), BROKEN, ids=[f"{b[0]}-{b[2]}-{i}" for i, b in enumerate(BROKEN)]
)
def test_a_broken_rule_breaks_a_case(
    topic: str, module: str, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = importlib.import_module(module)
    *owner, name = name.split(".")
    target = getattr(target, *owner) if owner else target
    assert hasattr(target, name)
    monkeypatch.setattr(target, name, broken)
    if name == "_hashes":
        monkeypatch.setitem(target._FALLBACK_FINDERS, "hashes", broken)
    assert has_mistake(topic)
