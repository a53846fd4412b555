"""Schemas as transformers makes them, and arguments as type hints say."""

from typing import Any, Literal

import pytest

from asyncrl.turns.tools.calculator import calculator
from asyncrl.turns.tools.tool import Tool, schema_of


def weather(
    city: str,
    days: int = 1,
    unit: Literal["C", "F"] = "C",
    places: list[float] | None = None,
    more: dict[str, Any] | None = None,
    is_long: bool = False,
) -> str:
    """Tells the weather of a place.

    Args:
        city: The city, with
            its country.
        days: How many days.
        unit: Of the temperature.
        places: Coordinates.
        more: Anything else.
        is_long: In words.

    Returns:
        The weather.
    """
    return f"{city} {days}"


@pytest.mark.parametrize("function", [weather, calculator])
def test_the_schema_is_that_of_transformers(function: Any) -> None:
    from transformers.utils import get_json_schema

    wanted = get_json_schema(function)
    wanted["function"].pop("return", None)
    assert schema_of(function, function.__name__) == wanted


def tool() -> Tool:
    return Tool("weather", schema_of(weather, "weather"), weather)


def test_arguments_get_the_types_of_their_hints() -> None:
    assert tool().checked({"city": "Bonn", "days": "3"}) == {"city": "Bonn", "days": 3}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "needs the argument 'city'"),
        ({"city": "Bonn", "day": 1}, "has no argument 'day'. It takes city, days"),
        ({"city": "Bonn", "days": "many"}, "is not as expected"),
        ({"city": 5}, "is not as expected"),
        ({"city": "Bonn", "unit": "K"}, "is not as expected"),
    ],
)
def test_wrong_arguments_are_answered_in_words_for_the_model(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tool().checked(arguments)


def undocumented(x: int) -> str:
    return ""


def untyped(x):  # type: ignore[no-untyped-def]
    """Does it.

    Args:
        x: It.
    """


def half(x: int) -> str:
    """Does it."""
    return ""


def odd(x: complex) -> str:
    """Does it.

    Args:
        x: It.
    """
    return ""


def unresolved(x: "Foo") -> str:  # type: ignore[name-defined]  # noqa: F821
    """Does it.

    Args:
        x: It.
    """


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (unresolved, "annotation of tool 'unresolved' cannot be resolved \\(NameError: name 'Foo' is not"),
        (undocumented, "has no docstring"),
        (untyped, "has no type hint"),
        (half, "does not describe x"),
        (odd, "expected str, int"),
    ],
)
def test_a_function_that_is_no_tool_says_what_it_lacks(function: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        schema_of(function, function.__name__)
