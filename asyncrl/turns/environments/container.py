"""Tasks in a working directory of their own: the model runs commands, and tests say whether it is done.

Columns of a row: `workspace` {path: text} and `setup`, a command, make the directory; `tests` judges it,
{"command": ..., "files": {path: text}, "reward_file": path, "same_box": truth value}. A row with an `image`
gets a container of podman or docker, any other a sandbox session. Bytes beyond text are {"base64": ...}.
Task folders of Harbor are read as such rows (asyncrl/data/harbor.py).

A turn with a block of the shell is run, and its output answers it. A turn without one hands in: the test
files are written over whatever is there, and the tests' command decides. Exit status 0 is a score of 1; a
reward file holds the score itself, in [0, 1]. The tests also run behind the last allowed command.
"""

import base64
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from asyncrl.turns.environment import End, EnvironmentUnavailable, Observation, Recovery
from asyncrl.turns.environments.boxes import (
    Box,
    BoxFailed,
    ContainerBox,
    Limits,
    Ran,
    SandboxBox,
    Spoiled,
    check_image,
    find_engine,
)
from verifiers.plugins import Bounds

_BLOCK = re.compile(r"```(?:bash|sh|shell|console)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)


class Container:
    """One working directory per trajectory."""

    def __init__(
        self,
        *,
        engine: str = "auto",
        image: str = "",
        network: bool = False,
        max_commands: Annotated[int, Bounds(1)] = 30,
        command_seconds: Annotated[float, Bounds(0.1, 86400)] = 8.0,
        setup_seconds: Annotated[float, Bounds(0.1, 86400)] = 60.0,
        test_seconds: Annotated[float, Bounds(0.1, 86400)] = 60.0,
        memory_mib: Annotated[int, Bounds(64, 1 << 20)] = 512,
        disk_mib: Annotated[int, Bounds(1, 1 << 20)] = 64,
        processes: Annotated[int, Bounds(1)] = 64,
        cpus: Annotated[float, Bounds(0.1)] = 1.0,
        recovery: Literal["replayable", "neither"] = "neither",
    ) -> None:
        """`engine`: podman, docker, a path, or auto. `image`: of rows that name none; empty: the sandbox,
        which has no network. `recovery`: replayable where commands print the same each time (no dates, no
        order of chance). turns.timeout_seconds has to cover the setup and a command, or the tests."""
        self.recovery = Recovery(recovery)
        self._engine, self._image, self._has_network = engine, image, network
        self._num_left = max_commands
        self._seconds = {"command": command_seconds, "setup": setup_seconds, "tests": test_seconds}
        self._limits = Limits(
            memory_mib=memory_mib,
            disk_mib=disk_mib,
            processes=processes,
            cpus=cpus,
            total_seconds=setup_seconds + max_commands * command_seconds + test_seconds,
        )
        self._row: dict[str, Any] = {}
        self._box: Box | None = None

    def start(self, row: Mapping[str, Any]) -> None:
        """Only checks the row: rows are started when data is read, too."""
        self._row = checked_row(row)
        if image := self._row["image"] or self._image:
            check_image(find_engine(self._engine), image, self._row["build"])

    def step(self, text: str) -> Observation | End:
        try:
            return self._answer(text)
        except BoxFailed as error:
            raise EnvironmentUnavailable(str(error)) from error
        except Spoiled as error:
            return End(0.0, f"no tests were run: {error}")

    def close(self) -> None:
        if self._box is not None:
            self._box.close()
            self._box = None

    def _answer(self, text: str) -> Observation | End:
        if self._box is None:
            self._box = self._opened()
        blocks = _BLOCK.findall(text)
        if not blocks:
            return self._judged(self._box)
        ran = self._box.run(blocks[-1], self._seconds["command"])
        self._num_left -= 1
        if ran.is_lost:
            return End(0.0, f"the working directory is lost: {ran.limit}")
        return Observation(words(ran)) if self._num_left else self._judged(self._box)

    def _opened(self) -> Box:
        row, image = self._row, self._row["image"] or self._image
        box: Box
        if image:
            engine = find_engine(self._engine)
            folder = row["folder"]
            box = ContainerBox(engine, image, self._limits, has_network=self._has_network, folder=folder)
        else:
            box = SandboxBox(self._limits)
        try:
            box.put(row["workspace"])
            if row["setup"]:
                ran = box.run(row["setup"], self._seconds["setup"])
                if ran.status != 0:
                    raise BoxFailed(f"the row's setup failed: {words(ran)[-500:]}")
        except Spoiled as error:
            box.close()
            raise BoxFailed(f"the row's files cannot be written: {error}") from error
        except BaseException:
            box.close()
            raise
        return box

    def _judged(self, box: Box) -> End:
        tests = self._row["tests"]
        place = self._place_of_tests(box)
        try:
            place.put(tests["files"])
            ran = place.run(tests["command"], self._seconds["tests"])
            score = float(ran.status == 0)
            if tests["reward_file"] and not ran.is_lost:
                score = reward_of(place.read(tests["reward_file"]))
        finally:
            if place is not box:
                place.close()
        return End(score, words(ran)[-500:])

    def _place_of_tests(self, box: Box) -> Box:
        """A new box with the workspace, where nothing of the agent runs or was replaced; with `same_box`
        its own, without its processes."""
        if self._row["tests"]["same_box"] and isinstance(box, ContainerBox):
            box.end_processes()
            return box
        packed = box.pack()
        fresh = self._opened()
        try:
            fresh.unpack(packed)
        except BaseException:
            fresh.close()
            raise
        return fresh


def words(ran: Ran) -> str:
    """A command's output for the model, and how it ended where that was not well."""
    if ran.status == 0:
        return ran.output.rstrip("\n") or "(no output)"
    end = f"[ended after {ran.limit}]" if ran.status is None else f"[exit status {ran.status}]"
    return f"{ran.output.rstrip(chr(10))}\n{end}".lstrip("\n")


def reward_of(text: str | None) -> float:
    """The number of a reward file; 0 where there is none, or none in [0, 1]."""
    try:
        found = float(text or "")
    except ValueError:
        return 0.0
    return found if 0.0 <= found <= 1.0 else 0.0


def checked_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that the environment reads, files as bytes. Raises ValueError."""
    tests = row.get("tests")
    if not isinstance(tests, dict) or not isinstance(tests.get("command"), str):
        raise ValueError(
            f'the column tests is {tests!r:.80}, expected {{"command": ..., "files": {{path: text}}}}'
        )
    for name in ("setup", "image", "folder", "build"):
        if not isinstance(row.get(name) or "", str):
            raise ValueError(f"the column {name} is {row[name]!r:.80}, expected a text")
    return {
        "workspace": _files(row.get("workspace"), "workspace"),
        "setup": row.get("setup") or "",
        "image": row.get("image") or "",
        "folder": row.get("folder") or None,
        "build": row.get("build") or "",
        "tests": {
            "command": tests["command"],
            "files": _files(tests.get("files"), "tests.files"),
            "reward_file": tests.get("reward_file") or "",
            "same_box": bool(tests.get("same_box")),
        },
    }


def _files(found: object, name: str) -> dict[str, bytes]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"the column {name} is {found!r:.80}, expected {{path: text}}")
    files = dict[str, bytes]()
    for path, content in found.items():
        match content:
            case str():
                files[path] = content.encode()
            case {"base64": str(code)}:
                files[path] = base64.b64decode(code)
            case _:
                raise ValueError(f"{path} in the column {name} is {content!r:.80}, expected a text")
    return files
