"""Tools: found by name, read from a function's hints, answered in words; the calculator."""

from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.turns.built_in_tools import calculator
from asyncrl.turns.environment import Recovery
from asyncrl.turns.tools import Tool, load_tool, load_tools, schema_of

OWN = '''
class Counter:
    """Counts.

    Args:
        word: What to count.
    """

    recovery = "replayable"

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def __call__(self, word: str) -> str:
        self.count += 1
        return f"{word} {self.count}"


def shout(text: str) -> str:
    """Shouts.

    Args:
        text: What.
    """
    return text.upper()
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(OWN)
    return tmp_path


def test_functions_and_classes_of_a_file_are_tools(folder: Path) -> None:
    shout, counter = load_tools(["./tools.py:shout", {"./tools.py:Counter": {"start": 5}}], folder)
    assert (shout.name, shout.function("a"), shout.recovery) == ("shout", "A", Recovery.STATELESS)
    assert (counter.name, counter.function("a"), counter.recovery) == ("Counter", "a 6", Recovery.REPLAYABLE)
    assert counter.schema["function"]["parameters"]["required"] == ["word"]


@pytest.mark.parametrize(
    ("name", "annotation", "said"),
    [("shout", "text: str", "'shout'"), ("Counter", "start: int", r"\./tools.py:C")],
)
def test_an_annotation_that_cannot_be_resolved_is_named(
    name: str, annotation: str, said: str, folder: Path
) -> None:
    argument = annotation.partition(":")[0]
    (folder / "tools.py").write_text(OWN.replace(annotation, f"{argument}: 'Foo'"))
    with pytest.raises(
        ValueError, match=rf"(?i)annotation of tool .*{said}.* cannot be resolved \(NameError:"
    ):
        load_tool(f"./tools.py:{name}", {}, folder)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (["calculater"], "no tool 'calculater'.*calculator"),
        (["./tools.py:shot"], "has no class .shot."),
        ([{"./tools.py:shout": {"loud": True}}], "takes no options: loud"),
        ([{"./tools.py:Counter": {"begin": 1}}], "has no option 'begin'"),
        ([{"./tools.py:Counter": {"start": "x"}}], "start"),
        (["calculator", "calculator"], "two tools 'calculator'"),
    ],
)
def test_a_mistake_is_named(folder: Path, named: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_tools(named, folder)


def test_tags_are_options_of_any_tool() -> None:
    tool = load_tool("calculator", {"tag": "calc", "result_tag": "out"}, None)
    assert (tool.tag, tool.result_tag) == ("calc", "out")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12 * (3 + 4)", "84"),
        ("-7 // 2", "-4"),
        ("1/3 + 1/6", "0.5"),
        ("0.1 + 0.2", "0.3"),
        ("2 ** 10", "1024"),
        ("2 ** -1", "0.5"),
        ("123456789 * 987654321", "121932631112635269"),
    ],
)
def test_expressions_are_worked_out_exactly(expression: str, value: str) -> None:
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression", ["9**9**9", "10**4000", "1/0", "__import__('os')", "a", "", "1 +", "True", "1j", "(" * 5000]
)
def test_anything_else_is_refused_at_once(expression: str) -> None:
    with pytest.raises(ValueError):
        calculator(expression)


@given(st.text(alphabet="0123456789.+-*/%() e", max_size=60))
def test_no_text_raises_anything_but_a_sentence(text: str) -> None:
    try:
        assert isinstance(calculator(text), str)
    except ValueError as error:
        assert str(error)


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
