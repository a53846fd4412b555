"""From a name to the object."""

from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.system.plugins import load_object


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


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(:\n", r'"/.*/broken\.py" failed to load: SyntaxError: .*line 1'),
        ("1 / 0\n", r'"/.*/broken\.py" failed to load: ZeroDivisionError: division by zero'),
        ("import no_such_module\n", r"failed to load: ModuleNotFoundError: .*no_such_module"),
    ],
)
def test_a_file_that_fails_while_it_loads_is_named_with_the_reason(
    source: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(InputError, match=said):
        load_object("./broken.py:f", folder=tmp_path)


def test_a_module_that_fails_while_it_loads_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_on_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match='"broken_on_import" failed to load: ZeroDivisionError'):
        load_object("broken_on_import:f")
