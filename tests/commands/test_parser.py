"""The parser of a subcommand refuses with a sentence and the nearest name."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.commands.arguments import add_recipe
from asyncrl.commands.parser import Parser, number, parse, whole
from asyncrl.errors import InputError


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="asyncrl plan")
    add_recipe(parser)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--goal", choices=("math", "code", "tools"))
    parser.add_argument("--fit", type=whole(1), nargs="+")
    parser.add_argument("--out", type=Path)
    return parser


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("r.yaml --simlate", "unrecognized arguments: --simlate. Did you mean --simulate?"),
        ("r.yaml --num-steps 5", "Did you mean trainer.num_steps? A key is changed without dashes"),
        ("r.yaml --frobnicate", "--frobnicate. `asyncrl plan --help` shows what it takes."),
        ("r.yaml --goal mth", "Did you mean math?"),
        ("r.yaml --fit 8 0", "--fit is 0, expected more than 0."),
        ("r.yaml --fit eight", "--fit is eight, expected a whole number, more than 0."),
        ("r.yaml --out=~no_such_user/x", "begins with ~no_such_user, which is no user of this machine"),
        ("", "the following arguments are required: RECIPE."),
    ],
)
def test_a_mistake_is_said_with_the_nearest_name(parser: Parser, words: str, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        parse(parser, words.split())
    assert sentence in str(error.value) and "usage:" not in str(error.value)


def test_a_path_that_no_shell_has_expanded_is_in_the_home_folder(
    parser: Parser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse(parser, ["r.yaml", "--out=~/x"]).out == Path("/home/someone/x")


@pytest.mark.parametrize(
    ("kind", "good", "bad", "expected"),
    [
        (whole(0, 65535), ("0", "65535"), ("-1", "65536", "1.5"), "0 to 65535"),
        (whole(1), ("1", "9"), ("0", "x", ""), "more than 0"),
        (number(above=0), ("0.1", "1e3"), ("0", "-1", "nan", "inf", "x"), "more than 0"),
        (number(least=0), ("0", "1.5"), ("-0.1", "nan"), "0 or more"),
    ],
)
def test_a_number_is_within_its_bounds(
    kind: Callable[[str], float], good: tuple[str, ...], bad: tuple[str, ...], expected: str
) -> None:
    assert [kind(text) for text in good] == [float(text) for text in good]
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError, match=f"is {text}, expected .*{expected}"):
            kind(text)
