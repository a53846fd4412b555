"""Unusable names, streams and folders, which no single command foresees, end in a sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LONG = "x" * 390
RECIPE = "name: t\nmodel: {path: m}\ndata: {train: d.jsonl}\nevaluation: {every_steps: 0}\n"
RUN_COMMANDS = (
    "status",
    "view",
    "journal",
    "chat",
    "compare",
    "audit",
    "report",
    "track",
    "plan",
    "check",
    "prompt",
)


def run(words: list[str], folder: Path, **options: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "asyncrl.commands.main", *words]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, cwd=folder, text=True, check=False, timeout=300, **given)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "r.yaml").write_text(RECIPE)
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [LONG, *(pytest.param(n, marks=pytest.mark.slow) for n in ("loop", "file/below", "dangling", "file"))],
)
@pytest.mark.parametrize("command", RUN_COMMANDS)
def test_a_name_that_is_no_run_ends_in_a_sentence(folder: Path, command: str, name: str) -> None:
    words = [command, name, "file" if command == "compare" else "--json" if command == "status" else ""]
    done = run([word for word in words if word], folder)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and done.stderr.strip()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("file/x", "file is a file. Name a folder"),
        ("loop", "loop is a broken link"),
        ("loop/x", "loop is a broken link"),
        ("dangling", "dangling is a broken link"),
        (f"{LONG}/x", "File name too long"),
    ],
)
def test_a_run_folder_that_cannot_be_made_is_refused_before_any_work(
    folder: Path, place: str, said: str
) -> None:
    from asyncrl.errors import InputError
    from asyncrl.recipe.file import load_recipe
    from asyncrl.run.folder import RunFolder

    recipe = load_recipe(folder / "r.yaml")
    try:
        with pytest.raises(InputError, match=said):
            RunFolder(folder / place).check(recipe)
    except OSError as error:
        # The border of the command line makes a sentence of it.
        assert said in str(error)


def test_a_long_value_of_a_key_is_no_file_name(folder: Path) -> None:
    done = run(["check", "r.yaml", f"prompt.template={LONG}"], folder)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "File name too long" not in done.stderr


@pytest.mark.parametrize("words", [["check", "r.yaml"], ["keys"], ["algorithms"]])
def test_an_output_that_is_full_is_said_to_be_the_output(folder: Path, words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(words, folder, stdout=full)
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    assert "The output accepts no more: No space left on device" in done.stderr


@pytest.mark.parametrize("words", [["keys"], ["check", "r.yaml"], ["status", "file"]])
def test_closed_streams_are_no_error_of_their_own(folder: Path, words: list[str]) -> None:
    line = " ".join([sys.executable, "-m", "asyncrl.commands.main", *words])
    shell = subprocess.run(
        ["sh", "-c", f"{line} 0<&- 1>&- 2>err; echo $?"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(shell.stdout) == (0 if words == ["keys"] else 2)
    assert "Traceback" not in (folder / "err").read_text()


def test_text_that_the_output_has_no_letters_for_is_shown_as_escapes(folder: Path) -> None:
    (folder / "r.yaml").write_text(RECIPE.replace("name: t", "name: tё"))
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = run(["check", "r.yaml"], folder, env=environment)
    assert "Traceback" not in done.stderr and "UnicodeEncodeError" not in done.stderr


def test_a_deleted_current_folder_is_named(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    line = f"rmdir {gone}; {sys.executable} -P -m asyncrl.commands.main keys"
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        ["sh", "-c", line], cwd=gone, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 2 and "current folder was deleted" in done.stderr


def test_two_columns_of_one_name_are_named(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    from asyncrl.data.files import read_rows
    from asyncrl.errors import InputError

    table = pyarrow.table([["1+1="], ["2"], ["3"]], names=["prompt", "answer", "answer"])
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    with pytest.raises(InputError, match="several columns are called answer"):
        list(read_rows(str(folder / "rows.parquet"), key="data.train"))
