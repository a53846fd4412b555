"""The prepare command: made once, in full or not at all, remade when what it was made from changes."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import DiskError, InputError
from asyncrl.examples.prepare import is_prepared, make_folder
from asyncrl.recipe import Prepare

MAKER = """
from asyncrl.errors import DiskError, InputError

def make(folder, progress, *, text, fails=False):
    progress("text", 0, 1)
    (folder / "text").write_text(text)
    if fails:
        raise InputError("text cannot be made")
    progress("text", 1, 1)

not_a_function = 3
"""


@pytest.fixture
def section(tmp_path):
    maker = tmp_path / "maker.py"
    maker.write_text(MAKER)

    def make(name="make", **options):
        return Prepare(target=f"{maker}:{name}", folder=str(tmp_path / "made"), options=options)

    return make


def ignore(stage: str, done: int, total: int) -> None:
    pass


def names_beside(folder: Path) -> set[str]:
    # Python may keep the bytecode of the target next to it.
    return {path.name for path in folder.parent.iterdir()} - {"__pycache__"}


def test_a_folder_is_made_with_a_stamp_and_progress_is_told(section, tmp_path):
    told = []
    assert not is_prepared(section(text="one"))
    make_folder(section(text="one"), lambda *progress: told.append(progress))
    assert (tmp_path / "made" / "text").read_text() == "one"
    assert json.loads((tmp_path / "made" / "prepared.json").read_text())["options"] == {"text": "one"}
    assert told == [("text", 0, 1), ("text", 1, 1)]


def test_an_up_to_date_folder_is_left_alone(section, tmp_path):
    make_folder(section(text="one"), ignore)
    (tmp_path / "made" / "text").write_text("touched")
    make_folder(section(text="one"), ignore)
    assert (tmp_path / "made" / "text").read_text() == "touched"


def test_changed_options_make_it_again_and_leave_nothing_next_to_it(section, tmp_path):
    make_folder(section(text="one"), ignore)
    (tmp_path / "made" / "stale").touch()
    make_folder(section(text="two"), ignore)
    assert (tmp_path / "made" / "text").read_text() == "two"
    assert not (tmp_path / "made" / "stale").exists()
    assert names_beside(tmp_path / "made") == {"maker.py", "made", "made.lock"}


def test_a_folder_of_an_older_format_is_made_again(section, tmp_path):
    make_folder(section(text="one"), ignore)
    stamp = tmp_path / "made" / "prepared.json"
    # Its base model may have a row of zeros.
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"format": 2}))
    assert not is_prepared(section(text="one"))
    (tmp_path / "made" / "text").write_text("old")
    make_folder(section(text="one"), ignore)
    assert (tmp_path / "made" / "text").read_text() == "one"


def test_a_target_that_fails_leaves_the_folder_as_it_was(section, tmp_path):
    with pytest.raises(InputError, match="text cannot be made"):
        make_folder(section(text="one", fails=True), ignore)
    assert not (tmp_path / "made").exists()
    make_folder(section(text="one"), ignore)
    with pytest.raises(InputError, match="text cannot be made"):
        make_folder(section(text="two", fails=True), ignore)
    assert (tmp_path / "made" / "text").read_text() == "one"
    assert names_beside(tmp_path / "made") == {"maker.py", "made", "made.lock"}


def test_what_a_killed_call_left_is_removed(section, tmp_path):
    (tmp_path / "made.making").mkdir()
    (tmp_path / "made.making" / "half").touch()
    make_folder(section(text="one"), ignore)
    assert not (tmp_path / "made" / "half").exists()
    assert not (tmp_path / "made.making").exists()


def test_a_folder_of_the_users_own_is_never_replaced(section, tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "thesis").touch()
    with pytest.raises(InputError, match="was not made by prepare"):
        make_folder(section(text="one"), ignore)
    assert (tmp_path / "made" / "thesis").exists()


def test_two_makers_of_one_folder_do_not_meet(section, tmp_path):
    with open(tmp_path / "made.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="Another process is making"):
            make_folder(section(text="one"), ignore)


def test_a_target_that_is_no_function_is_refused(section):
    with pytest.raises(InputError, match="not a function"):
        make_folder(section("not_a_function"), ignore)


def run_command(recipe: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asyncrl.examples.prepare", "--recipe", str(recipe), *overrides]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_command_prints_progress_as_json_lines_and_is_silent_when_up_to_date(section, tmp_path):
    made = section(text="one")
    recipe = tmp_path / "recipe.yaml"
    content = {"name": "r", "model": {"path": "m"}, "data": {"train": "t"}, "evaluation": {"every_steps": 0}}
    recipe.write_text(json.dumps({**content, "prepare": made.model_dump()}))
    first, second = run_command(recipe), run_command(recipe)
    assert (first.returncode, second.returncode) == (0, 0)
    assert [json.loads(line) for line in first.stdout.splitlines()] == [
        {"stage": "text", "done": 0, "total": 1},
        {"stage": "text", "done": 1, "total": 1},
    ]
    assert second.stdout == ""


def test_the_command_ends_with_code_two_and_one_sentence_for_what_the_user_can_mend(tmp_path):
    missing = run_command(tmp_path / "none.yaml")
    assert missing.returncode == 2
    assert "There is no recipe at" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_a_disk_that_fills_up_while_a_folder_is_made_is_a_sentence(tmp_path):
    (tmp_path / "full.py").write_text("def make(folder, progress):\n    raise OSError(28, 'No space left')\n")
    section = Prepare(target=f"{tmp_path / 'full.py'}:make", folder=str(tmp_path / "made"))
    with pytest.raises(DiskError, match=r"full\.py:make under .* could not be written: No space .* Free up"):
        make_folder(section, ignore)
    assert names_beside(tmp_path / "made") == {"full.py", "made.lock"}


WRONG = """
async def coroutine(folder, progress): (folder / "text").write_text("late")
def generator(folder, progress):
    (folder / "text").write_text("late")
    yield
def path(folder, progress): return folder
def nothing(folder, progress): pass
def talkative(folder, progress): progress("text", 0.5, None)
def broken(folder, progress): return {}["missing"]
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("coroutine", r"gave <coroutine object .*; expected None and files in the folder"),
        ("generator", r"gave <generator object .* has not run"),
        ("path", r"gave PosixPath\(.*; expected None"),
        ("nothing", r"left the folder empty; expected data or a model in it"),
        ("talkative", r"called progress\('text', 0\.5, None\); expected a text and two whole numbers"),
        ("broken", r"raised KeyError: 'missing' \(.*wrong\.py:9\)"),
    ],
)
def test_a_target_that_does_not_make_a_folder_is_named(tmp_path, name, said):
    (tmp_path / "wrong.py").write_text(WRONG)
    section = Prepare(target=f"{tmp_path}/wrong.py:{name}", folder=str(tmp_path / "made"))
    with pytest.raises(InputError, match=said) as raised:
        make_folder(section, ignore)
    assert name == "talkative" or "prepare.target" in str(raised.value)
    assert names_beside(tmp_path / "made") == {"made.lock", "wrong.py"}
    assert not is_prepared(section)


def test_what_a_target_prints_is_no_progress(tmp_path):
    (tmp_path / "loud.py").write_text(
        "import os\n"
        "def make(folder, progress):\n"
        "    print('loading')\n"
        "    os.system('echo of a program')\n"
        "    (folder / 'text').write_text('here')\n"
        "    progress('text', 1, 1)\n"
    )
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"name: t\nprepare: {{target: '{tmp_path}/loud.py:make', folder: '{tmp_path}/made'}}\n"
        f"model: {{path: m}}\ndata: {{train: d}}\nevaluation: {{every_steps: 0}}\n"
    )
    command = [sys.executable, "-m", "asyncrl.examples.prepare", "--recipe", str(recipe)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"stage": "text", "done": 1, "total": 1}
    ]
    assert {"loading", "of a program"} <= set(done.stderr.splitlines())
