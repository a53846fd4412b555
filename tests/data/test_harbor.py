"""Task folders of Harbor as rows, and one of them played with an engine that records its calls."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.container_engine import calls, write_engine

from asyncrl.data.digests import digest_of
from asyncrl.data.files import read_rows
from asyncrl.data.harbor import NEVER
from asyncrl.errors import InputError
from asyncrl.recipe import Source
from asyncrl.turns.environment import End
from asyncrl.turns.environments.container import Container
from verifiers.registry import load_verifier

CONFIG = (
    '[metadata]\nauthor_name = "someone"\n\n[verifier]\ntimeout_sec = 120.0\n\n[environment]\n{environment}\n'
)


def write_task(folder: Path, name: str = "hello", environment: str = 'workdir = "/work"') -> Path:
    task = folder / name
    for inner in ("environment", "tests", "solution"):
        (task / inner).mkdir(parents=True)
    (task / "task.toml").write_text(CONFIG.format(environment=environment))
    (task / "instruction.md").write_text("Write hello into hello.txt.\n")
    (task / "environment" / "Dockerfile").write_text("FROM debian:12\nWORKDIR /work\n")
    (task / "tests" / "test.sh").write_text(
        'if [ "$(cat /work/hello.txt)" = "$(cat /tests/expected)" ]; then echo 1; else echo 0; fi'
        " > /logs/verifier/reward.txt\n"
    )
    (task / "tests" / "expected").write_text("hello\n")
    (task / "tests" / "icon.png").write_bytes(b"\x89PNG\xff")
    return task


def test_each_task_of_a_folder_is_a_row(tmp_path: Path) -> None:
    write_task(tmp_path, "b", 'docker_image = "debian:12"')
    write_task(tmp_path, "a")
    first, second = list(read_rows(str(tmp_path), key="data.train"))
    assert (first.where, second.number) == (str(tmp_path / "a"), 2)
    assert first.row["prompt"] == [{"role": "user", "content": "Write hello into hello.txt.\n"}]
    assert first.row["image"] == "asyncrl-harbor/a" and second.row["image"] == "debian:12"
    assert first.row["build"] == f"podman build -t asyncrl-harbor/a {tmp_path / 'a' / 'environment'}"
    assert first.row["tests"]["files"]["/tests/icon.png"] == {"base64": "iVBOR/8="}
    assert [found.row["folder"] for found in read_rows(str(tmp_path / "a"), key="data.train")] == ["/work"]
    regex = load_verifier("regex")
    assert not regex.verify("(?!)", regex.parse_reference(NEVER)).outcome == "correct"


def test_a_task_is_played_and_its_reward_file_read(tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine")
    write_task(tmp_path / "tasks")
    (found,) = read_rows(str(tmp_path / "tasks"), key="data.train")
    for command, score in (("echo hello > hello.txt", 1.0), ("true", 0.0)):
        environment = Container(engine=str(engine))
        environment.start(found.row)
        environment.step(f"```bash\n{command}\n```")
        ended = environment.step("Done.")
        environment.close()
        assert isinstance(ended, End) and ended.score == score
    assert ["image", "inspect", "asyncrl-harbor/hello"] in calls(engine.parent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda task: (task / "tests" / "test.sh").unlink(), "without tests/test.sh"),
        (lambda task: (task / "environment" / "Dockerfile").unlink(), "without an image"),
        (
            lambda task: (task / "environment" / "docker-compose.yaml").write_text("x"),
            "of several containers",
        ),
        (lambda task: (task / "instruction.md").unlink(), "that cannot be read"),
        (lambda task: (task / "task.toml").write_text("[environment"), "that cannot be read"),
        (lambda task: (task / "task.toml").write_text('[environment]\nos = "windows"'), "for windows"),
        (lambda task: (task / "task.toml").write_text("[environment]\ngpus = 1"), "asks for accelerators"),
        (lambda task: (task / "task.toml").write_text('[[steps]]\nname = "a"'), "with several steps"),
        (
            lambda task: (task / "task.toml").write_text('[verifier]\nenvironment_mode = "separate"'),
            "whose tests have a container of their own",
        ),
    ],
)
def test_a_task_that_cannot_be_run_is_refused_with_its_reason(
    tmp_path: Path, change: Callable[[Path], object], said: str
) -> None:
    change(write_task(tmp_path))
    with pytest.raises(InputError, match=said):
        list(read_rows(str(tmp_path), key="data.train"))


def test_data_has_changed_when_a_file_of_a_task_has(tmp_path: Path) -> None:
    task = write_task(tmp_path)
    before = digest_of([Source(path=str(tmp_path))], "data.train")
    (task / "tests" / "expected").write_text("bye\n")
    assert digest_of([Source(path=str(tmp_path))], "data.train") != before
