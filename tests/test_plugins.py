"""From a name to the object."""

from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.plugins import load_object


def test_a_dotted_name_is_imported() -> None:
    assert load_object("json:loads")("[1]") == [1]  # type: ignore[operator]


def test_a_file_is_loaded_from_the_folder_it_is_relative_to(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f():\n    return 3\n")
    assert load_object("./mine.py:f", folder=tmp_path)() == 3  # type: ignore[operator]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("json", "names no object"),
        ("json:", "names no object"),
        ("json:nothing", 'json has no "nothing". It has: .*loads'),
        ("no_such_module:f", "cannot be imported"),
        ("./no_such_file.py:f", "is not a Python file"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(target: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_object(target)
