"""Tasks in a working directory: in the real sandbox, and in containers of a fake engine."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.container_engine import calls, write_engine

from asyncrl.turns.environment import End, EnvironmentUnavailable, Observation
from asyncrl.turns.environments import boxes
from asyncrl.turns.environments.boxes import check_image, find_engine
from asyncrl.turns.environments.container import Container, checked_row, reward_of

SUM = {
    "workspace": {"numbers.txt": "3\n4\n"},
    "tests": {
        "command": "sh check/sum.sh",
        "files": {"check/sum.sh": 'test "$(cat sum.txt)" = 7 && echo fine\n'},
    },
}
RIGHT = "I add them.\n```bash\nawk '{s += $1} END {print s}' numbers.txt > sum.txt\n```"


def block(command: str) -> str:
    return f"```sh\n{command}\n```"


@pytest.fixture
def opened() -> Iterator[list[Container]]:
    found: list[Container] = []
    yield found
    for each in found:
        each.close()


def started(opened: list[Container], row: dict[str, Any], **options: Any) -> Container:
    environment = Container(**options)
    opened.append(environment)
    environment.start(row)
    return environment


def said(found: Observation | End) -> str:
    assert isinstance(found, Observation)
    return str(found.messages)


def test_commands_keep_their_files_and_the_tests_decide(opened: list[Container]) -> None:
    environment = started(opened, SUM)
    assert said(environment.step(block("cat numbers.txt; exit 3"))) == "3\n4\n[exit status 3]"
    assert said(environment.step(RIGHT)) == "(no output)"
    assert environment.step("Done.") == End(1.0, "fine")


def test_no_file_or_process_of_the_agent_stands_in_for_a_test(opened: list[Container]) -> None:
    environment = started(opened, SUM)
    environment.step(block("mkdir check; echo 'exit 0' > check/sum.sh; chmod 400 check/sum.sh"))
    environment.step(block("(while true; do echo 7 > sum.txt; sleep 0.01; done) > /dev/null 2>&1 &"))
    environment.step(block("rm -f sum.txt; ln -s /dev/full sum.txt"))
    found = environment.step("Done.")
    assert isinstance(found, End) and found.score == 0.0


@pytest.mark.parametrize(
    ("command", "detail"),
    [
        ("echo x > check", "no tests were run: FileExistsError"),
        ("head -c 8000000 /dev/urandom > big", "no tests were run: the workspace has more than 4 MiB"),
    ],
)
def test_what_the_agent_left_is_its_own_doing(opened: list[Container], command: str, detail: str) -> None:
    environment = started(opened, SUM)
    environment.step(block(command))
    found = environment.step("Done.")
    assert isinstance(found, End) and found.score == 0.0 and detail in found.detail


def test_a_command_without_end_is_ended_and_the_next_one_runs(opened: list[Container]) -> None:
    environment = started(opened, SUM, command_seconds=0.5)
    assert said(environment.step(block("echo begun; sleep 100"))) == "begun\n[ended after 0.5 seconds]"
    assert said(environment.step(block("echo next"))) == "next"


def test_behind_the_last_allowed_command_the_tests_run(opened: list[Container]) -> None:
    assert started(opened, SUM, max_commands=1).step(RIGHT) == End(1.0, "fine")


def test_a_reward_file_holds_the_score(opened: list[Container]) -> None:
    tests = {"command": "echo 0.25 > reward.txt; exit 1", "reward_file": "reward.txt"}
    found = started(opened, {"tests": tests}).step("Done.")
    assert isinstance(found, End) and found.score == 0.25
    assert [reward_of(text) for text in (None, "", "2", "-1", "nan", "1\n")] == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"setup": "echo broken; exit 4"}, "the row's setup failed: broken"),
        ({"workspace": {"/etc/x": "1"}}, "/etc/x is outside the workspace"),
        ({"workspace": {"a": "1", "a/b": "1"}}, "the row's files cannot be written"),
    ],
)
def test_a_row_that_cannot_be_set_up_is_a_fault(
    opened: list[Container], row: dict[str, Any], said: str
) -> None:
    with pytest.raises(EnvironmentUnavailable, match=said):
        started(opened, SUM | row).step("Done.")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "the column tests is None"),
        ({"tests": {"command": 7}}, "the column tests is"),
        (SUM | {"workspace": ["x"]}, "the column workspace is"),
        (SUM | {"tests": {"command": "x", "files": {"a": 1}}}, "a in the column tests.files is 1"),
        (SUM | {"setup": 7}, "the column setup is 7, expected a text"),
    ],
)
def test_a_row_without_what_it_needs_is_refused(row: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checked_row(row)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    check_image.cache_clear()
    return write_engine(tmp_path / "engine")


IN_IMAGE = SUM | {"image": "debian:12", "setup": "echo ready > ready.txt"}


def test_a_row_with_an_image_runs_in_a_container_without_a_network(
    opened: list[Container], engine: Path
) -> None:
    environment = started(opened, IN_IMAGE, engine=str(engine), memory_mib=256)
    assert said(environment.step(block("cat ready.txt numbers.txt"))) == "ready\n3\n4"
    environment.step(RIGHT)
    environment.step(block("rm numbers.txt"))
    assert environment.step("Done.") == End(1.0, "fine")
    environment.close()
    told = calls(engine.parent)
    runs = [call for call in told if call[0] == "run"]
    names = [call[call.index("--name") + 1] for call in runs]
    # The tests run in a second one, which has the agent's files.
    assert len(set(names)) == 2 and told.count(["image", "inspect", "debian:12"]) == 1
    for call in runs:
        text = " ".join(call)
        assert "--network none" in text and "--memory 256m" in text and "--pull never" in text
        assert call[-3:] == ["--entrypoint", "cat", "debian:12"]
    assert all(["rm", "--force", name] in told for name in names)
    assert not any((engine.parent / name).exists() for name in names)


def test_the_network_is_on_where_the_recipe_says_so(opened: list[Container], engine: Path) -> None:
    started(opened, IN_IMAGE, engine=str(engine), network=True).step(block("true"))
    assert "--network" not in next(call for call in calls(engine.parent) if call[0] == "run")


def test_a_container_ends_with_its_environment_however_that_ends(engine: Path) -> None:
    box = boxes.ContainerBox(str(engine), "debian:12", boxes.Limits(), has_network=False, folder="/work")
    root = engine.parent / box._name
    assert root.is_dir()
    # What the end of this process would do.
    assert box._first.stdin is not None
    box._first.stdin.close()
    assert box._first.wait(timeout=60) == 0 and not root.exists()
    box.close()


def test_an_image_or_an_engine_that_is_not_there_is_a_sentence_before_work_starts(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"the image none:1 is not there .*podman pull none:1"):
        Container(engine=str(engine)).start(IN_IMAGE | {"image": "none:1"})
    monkeypatch.setenv("PATH", str(engine.parent))
    assert find_engine("auto") == "podman"
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match="neither podman nor docker is on the PATH"):
        Container().start(IN_IMAGE)
    with pytest.raises(ValueError, match="no-such is not on the PATH"):
        find_engine("no-such")


def test_an_engine_that_fails_is_no_answer_of_the_agent(engine: Path, opened: list[Container]) -> None:
    environment = started(opened, IN_IMAGE, engine=str(engine))
    shutil.rmtree(engine.parent / "gone", ignore_errors=True)
    environment._row["image"] = "none:1"
    with pytest.raises(EnvironmentUnavailable, match="`.*podman run` of none:1 failed: Error: no such image"):
        environment.step(RIGHT)


@pytest.mark.slow
def test_a_real_engine_runs_a_task(opened: list[Container]) -> None:
    try:
        engine = find_engine("auto")
        check_image(engine, "debian:12")
    except (ValueError, subprocess.SubprocessError) as error:
        pytest.skip(f"no engine with debian:12: {error}")
    environment = started(opened, IN_IMAGE)
    environment.step(RIGHT)
    assert environment.step("Done.") == End(1.0, "fine")
