"""From a name to the object; a call that does not return is named while it blocks."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.system.plugins import MOVED, SlowCalls, load_object


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


def test_a_module_that_has_moved_is_where_the_table_says() -> None:
    for old, new in MOVED.items():
        assert find_spec(new) is not None and find_spec(old) is None


def test_a_name_in_a_module_that_has_moved_is_refused_with_the_new_one() -> None:
    said = r'Write "asyncrl\.readers\.trackers\.tensorboard:open_tracker"'
    with pytest.raises(InputError, match=said):
        load_object("asyncrl.trackers.tensorboard:open_tracker")


@pytest.mark.parametrize("target", ["./own_tracker.py:f", "own_tracker:f"])
def test_an_import_of_a_module_that_has_moved_is_refused_with_the_new_name(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_tracker.py").write_text("from asyncrl.trackers.tracker import Note\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = r"failed to load: .*asyncrl\.trackers is asyncrl\.readers\.trackers now: change the import"
    with pytest.raises(InputError, match=said):
        load_object(target, folder=tmp_path)


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_call_is_named_after_some_seconds_and_each_time_that_it_has_doubled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    calls = SlowCalls(clock=clock)
    with calls.call("parse_reference of v.py:V on train.jsonl:1"):
        for clock.seconds in (1, 4, 5, 6, 9, 10, 19, 20):
            calls.look()
    seconds = [message.split(" for ")[1].split(" s")[0] for message in caplog.messages]
    assert seconds == ["5", "10", "20"]
    assert all("parse_reference of v.py:V on train.jsonl:1 has not returned" in m for m in caplog.messages)


def test_many_short_calls_are_not_one_long_one(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    calls = SlowCalls(clock=clock)
    for number in range(20):
        with calls.call(f"row {number}"):
            clock.seconds += 3
            calls.look()
    calls.look()
    assert caplog.messages == []


def test_a_call_that_blocks_is_named_from_beside_it() -> None:
    program = """
import itertools, logging, sys
from asyncrl.system.plugins import SlowCalls

class Ended(logging.Handler):
    def emit(self, record):
        print(record.getMessage(), flush=True)
        import os; os._exit(0)

logging.getLogger().addHandler(Ended())
seconds = itertools.count(step=100)
with SlowCalls(clock=lambda: next(seconds)).call("a loop without end"):
    while True: pass
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert "a loop without end has not returned for" in run.stdout, run.stderr
