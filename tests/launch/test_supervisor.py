"""What the controller asks of the processes of a run reaches them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fakes.recipes import make_recipe

from asyncrl.journal.starts import read_changes
from asyncrl.journal.writer import Journal
from asyncrl.launch.trainers import LocalSupervisor


async def test_servers_and_trainer_are_reached_and_changes_outlive_the_start(tmp_path: Path) -> None:
    done: list[tuple[str, str]] = []

    async def restart(url: str) -> None:
        done.append(("restart", url))

    async def end(url: str) -> None:
        done.append(("end", url))

    local = "http://127.0.0.1:31000"
    servers: Any = SimpleNamespace(processes={local: None}, restart=restart, end=end)
    trainers: Any = SimpleNamespace(kill=lambda why: done.append(("kill", why)))
    recipe = make_recipe(tmp_path)
    journal = Journal(tmp_path / "journal.sqlite")
    supervisor = LocalSupervisor(recipe, servers, trainers, journal)
    await supervisor.restart_server("http://a:1")
    await supervisor.end_server("http://b:1")
    supervisor.kill_trainer("it hangs")
    assert done == [("restart", "http://a:1"), ("end", "http://b:1"), ("kill", "it hangs")]
    supervisor.record_server_change("add", "http://c:1")
    supervisor.record_server_change("remove", local)
    journal.barrier_blocking()
    changes = read_changes(journal, recipe.serving)
    assert list(changes.added) == ["http://c:1"] and changes.removed_local == {local}
